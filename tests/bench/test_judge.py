"""The bench of the judge: what it plants, how it counts, and a sample of what it shows; the whole is a proof."""

from __future__ import annotations

import pytest
from bench.judge import (
    EXACT,
    HARMS,
    PAIRS,
    PLAIN,
    SAME,
    SHORT_PAIRS,
    SHORT_STEPS,
    Kind,
    target_of,
    train_all,
    whole_tests,
)

from hasten.measure.loss_equivalence import Criterion
from hasten.tuning.proof.loss_proof import EARLY, SHORT_MARGIN, Pair, Trained, judged


def named(name: str) -> Kind:
    return next(kind for kind in (*SAME, *HARMS, *EXACT) if kind.name == name)


def values(*losses: float) -> list[Trained]:
    """Runs whose first losses differ, as those of different seeds do."""
    return [Trained(losses=(9.0 + n, loss), results={"loss": loss}) for n, loss in enumerate(losses)]


@pytest.mark.parametrize(("name", "outcome"), [("accumulation", "missed"), ("rate × 1.3", "met")])
def test_what_does_no_harm_must_be_called_equivalent_and_a_harm_never(name, outcome):
    harmed = whole_tests(values(*[2.0, 2.1, 1.9] * 20), values(*[2.2, 2.3, 2.1] * 20), 3)
    assert target_of(named(name), harmed).outcome == outcome


@pytest.mark.proof
@pytest.mark.trap(50)
def test_a_few_steps_of_three_pairs_show_a_gross_harm_and_none_where_there_is_none():
    runs = train_all(
        (PLAIN, named("loss scaling"), named("clip before unscale")), range(SHORT_PAIRS), steps=SHORT_STEPS
    )
    plain = runs.pop(PLAIN.name)
    assert runs["loss scaling"] == plain
    found = [
        Pair(seed=n, plain=a, planned=b)
        for n, (a, b) in enumerate(zip(plain, runs["clip before unscale"], strict=True))
    ]
    assert judged(found, Criterion(metric=EARLY, margin=SHORT_MARGIN), SHORT_PAIRS).verdict == "harmed"


@pytest.mark.proof
@pytest.mark.trap(50)
@pytest.mark.timeout(1800)
def test_the_judge_passes_none_of_six_harms_and_rejects_nothing_that_does_none():
    """One test of each: how often what does no harm is also called equivalent is for the record to count."""
    runs = train_all((PLAIN, *SAME, *HARMS), range(PAIRS))
    verdicts = {kind.name: whole_tests(runs["plain"], runs[kind.name], PAIRS)[0].verdict for kind in (*SAME, *HARMS)}
    assert "harmed" not in {verdicts[kind.name] for kind in SAME}
    assert "equivalent" in {verdicts[kind.name] for kind in SAME}
    assert "equivalent" not in {verdicts[kind.name] for kind in HARMS}
