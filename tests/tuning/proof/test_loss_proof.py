"""What pairs of runs say of a plan's loss, and that nothing spoils the sample that is judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from hasten.errors import Misconfigured
from hasten.facts.plan import Plan
from hasten.facts.trials import Curves
from hasten.measure.loss_equivalence import Criterion
from hasten.tuning.proof import loss_proof
from hasten.tuning.proof.loss_proof import (
    EARLY,
    TRAINING,
    Pair,
    PlannedRun,
    Trained,
    criterion_of,
    judged,
    paired_curves,
    prove_loss,
    value_of,
)
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome
from tuning.jobs.loss_jobs import PLAN

JOBS = Path(__file__).parents[1] / "jobs" / "loss_jobs.py"


def arms(function: str = "job") -> Arms:
    return Arms(f"{JOBS}:{function}")


def run(loss: float, *, steps: int = 20, first: float = 9.0, end: float | None = None) -> Trained:
    """Losses that end at `end`, and an evaluation's loss."""
    end = loss if end is None else end
    return Trained(losses=(first, *[end] * (steps - 1)), results={"loss": loss, "right": 1 / loss})


def pairs(*values: tuple[float, float]) -> list[Pair]:
    return [
        Pair(seed=seed, plain=run(plain, first=9.0 + seed), planned=run(planned, first=9.0 + seed))
        for seed, (plain, planned) in enumerate(values)
    ]


SAME = pairs((2.0, 2.001), (2.1, 2.099), (1.9, 1.9005))
WORSE = pairs((2.0, 2.2), (2.1, 2.31), (1.9, 2.1))


# ── judging ─────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(("found", "verdict"), [(SAME, "equivalent"), (WORSE, "harmed")])
def test_pairs_are_judged_by_their_evaluations(found, verdict):
    proof = judged(found, Criterion(), 3)
    assert proof.verdict == verdict
    assert proof.judgement is not None
    assert proof.sentence == proof.judgement.sentence


def test_a_whole_run_is_judged_by_its_last_tenth_and_a_short_one_by_its_last_half():
    losses = Trained(losses=tuple(float(step) for step in range(20)), results={"loss": 3.0})
    assert value_of(losses, Criterion(metric=TRAINING)) == 18.5
    assert value_of(losses, Criterion(metric=EARLY)) == 14.5
    assert value_of(losses, Criterion(metric="loss")) == 3.0


@pytest.mark.parametrize(("planned", "verdict"), [(0.105, "equivalent"), (0.15, "harmed"), (0.05, "better")])
def test_a_short_run_whose_loss_has_fallen_far_is_judged_by_how_far_it_had_to_fall(planned, verdict):
    def fallen(seed: int, end: float) -> Trained:
        return Trained(losses=(2.0, 1.0, 1.0 + seed / 100, end, end, end), results={})

    found = [Pair(seed=seed, plain=fallen(seed, 0.1), planned=fallen(seed, planned)) for seed in range(3)]
    assert judged(found, Criterion(metric=EARLY, margin=0.01), 3).verdict == verdict


@pytest.mark.trap(51)
def test_a_planned_run_that_became_nan_is_harm_whatever_the_other_pairs_say():
    lost = ArmFailed("planned", Outcome.NON_FINITE, "the loss of step 7 is nan")
    proof = judged([*SAME, Pair(seed=3, plain=run(2.0), planned=lost)], Criterion(), 5)
    assert (proof.verdict, proof.judgement, proof.failure) == ("harmed", None, None)
    assert "with seed 3 the planned run became not finite (the loss of step 7 is nan)" in proof.sentence


@pytest.mark.trap(51)
@pytest.mark.parametrize("planned", [run(2.0), ArmFailed("planned", Outcome.NON_FINITE, "step 7")])
def test_where_the_plain_run_failed_nothing_is_said_of_the_plan(planned):
    lost = ArmFailed("plain", Outcome.NON_FINITE, "the loss of step 7 is nan")
    proof = judged([*SAME, Pair(seed=3, plain=lost, planned=planned)], Criterion(), 5)
    assert (proof.verdict, proof.judgement, proof.failure) == ("failed", None, lost)
    assert "the baseline failed with seed 3" in proof.sentence


@pytest.mark.parametrize("outcome", [outcome for outcome in Outcome if outcome is not Outcome.NON_FINITE])
def test_a_plan_that_fails_for_another_reason_did_no_harm_to_a_loss_and_is_not_proven(outcome):
    lost = ArmFailed("planned", outcome, "it is so")
    proof = judged([*SAME, Pair(seed=3, plain=run(2.0), planned=lost)], Criterion(), 5)
    assert (proof.verdict, proof.judgement, proof.failure) == ("failed", None, lost)


def test_too_few_pairs_say_so_and_nothing_else():
    proof = judged(SAME[:2], Criterion(), 5, KeyboardInterrupt())
    assert (proof.verdict, proof.judgement) == ("inconclusive", None)
    assert proof.sentence == "2 of 5 pairs were trained, too few for a result: 3 are needed"


@pytest.mark.parametrize(
    ("metrics", "asked", "says"),
    [
        ({"loss": False, "right": True}, "rihgt", 'did you mean "right"'),
        ({}, "right", "set Job.valid"),
        ({"loss": False, "silent": None}, "silent", "does not say whether higher is better"),
    ],
)
def test_a_metric_that_cannot_be_judged_is_refused(metrics, asked, says):
    with pytest.raises(Misconfigured, match=says):
        criterion_of(PlannedRun(steps=9, seed=0, metrics=metrics), asked, 0.005)


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.proof
@pytest.mark.trap(50)
def test_the_same_plan_in_both_arms_gives_the_same_bits_and_is_equivalent():
    proof = prove_loss(arms(), Plan(), pairs=3)
    assert proof.verdict == "equivalent"
    assert [pair.seed for pair in proof.pairs] == [0, 1, 2]
    assert all(pair.plain == pair.planned for pair in proof.pairs)
    assert len({pair.plain.losses for pair in proof.pairs if isinstance(pair.plain, Trained)}) == 3


@pytest.mark.proof
@pytest.mark.trap(50)
def test_a_planned_arm_that_trains_something_else_is_called_so():
    proof = prove_loss(arms("another_rate_when_planned"), PLAN, pairs=3, margin=0.01, first_seed=5)
    assert [pair.seed for pair in proof.pairs] == [5, 6, 7]
    assert proof.verdict == "harmed"


@pytest.mark.proof
def test_seeds_that_change_nothing_are_no_sample():
    proof = prove_loss(arms("deaf_to_seeds"), Plan(), pairs=3)
    assert (proof.verdict, proof.judgement) == ("inconclusive", None)
    assert "seeds 0 and 1 gave bit-identical losses" in proof.sentence


@pytest.mark.proof
def test_the_arm_that_runs_first_changes_from_pair_to_pair(tmp_path, monkeypatch):
    journal = tmp_path / "journal"
    monkeypatch.setenv("HASTEN_TEST_JOURNAL", str(journal))
    seen: list[tuple[int, int]] = []
    prove_loss(arms("noted"), PLAN, pairs=3, watch=lambda done, whole: seen.append((done, whole)))
    turns = list(dict.fromkeys(journal.read_text().splitlines()))
    assert turns == ["plain 0", "planned 0", "planned 1", "plain 1", "plain 2", "planned 2"]
    assert seen[-1] == (96, 96)
    assert seen == sorted(seen)


@pytest.mark.proof
@pytest.mark.trap(51)
def test_a_run_that_fails_ends_the_proof():
    proof = prove_loss(arms("not_finite_with_seed_one_when_planned"), PLAN, pairs=3)
    assert (proof.verdict, len(proof.pairs)) == ("harmed", 2)


@pytest.mark.proof
@pytest.mark.parametrize(("finished", "verdict"), [(2, "inconclusive"), (4, "equivalent")])
def test_an_interruption_keeps_what_the_finished_pairs_say(finished, verdict):
    def interrupt(done: int, whole: int) -> None:
        if done > finished * 2 * 16:
            raise KeyboardInterrupt

    proof = prove_loss(arms(), Plan(), pairs=6, watch=interrupt)
    assert proof.interrupted
    assert (len(proof.pairs), proof.verdict) == (finished, verdict)


@pytest.mark.parametrize("count", [0, 2])
def test_fewer_than_three_pairs_are_refused_before_anything_runs(count):
    with pytest.raises(Misconfigured, match="too few"):
        prove_loss(arms("not_there"), Plan(), pairs=count)
    with pytest.raises(Misconfigured, match="too few"):
        paired_curves(arms("not_there"), Plan(), range(count), 5)


# ── short runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def early(seed: int, harm: float) -> Pair:
    """Of a short run, whose loss falls from 2 to 1 and is otherwise that of its seed."""
    plain, planned = ((2.0 + seed / 1000, 2.0, end, end) for end in (1.0 + seed / 1000, 1.0 + seed / 1000 + 2 * harm))
    first_step = {"loss": 2.0 + seed / 1000}
    sides = (Trained(losses=losses, results={}, first_step=first_step) for losses in (plain, planned))
    return Pair(seed=seed, plain=next(sides), planned=next(sides))


def judged_early(monkeypatch: pytest.MonkeyPatch, harm_of: Callable[[int], float]) -> Curves:
    """harm_of: a seed, as a share of the loss."""

    def trained_pairs(arms: Arms, plan: Plan, seeds: Sequence[int], *rest: object) -> list[Pair]:
        return [early(seed, harm_of(seed)) for seed in seeds]

    monkeypatch.setattr(loss_proof, "trained_pairs", trained_pairs)
    return paired_curves(arms("not_there"), Plan(), range(3), 4)


HARM = (0.04, 0.05, 0.06)


@pytest.mark.parametrize(
    ("harms", "verdict", "seeds", "says"),
    [
        ((*HARM, *HARM), "harmed", range(6), "(98 % interval 3.77% worse to 6.23% worse; 1.00% is tolerated)"),
        ((*HARM, 0.0, 0.0, 0.001), "inconclusive", range(6), "; the first 3 pairs alone were harmed"),
        ((*HARM, *(-each for each in HARM)), "inconclusive", range(6), "; the first 3 pairs alone were harmed"),
        ((0.0, 0.0, 0.001), "equivalent", range(3), "1.00% is tolerated)"),
    ],
)
def test_harm_in_short_runs_is_shown_in_two_stages(harms, verdict, seeds, says, monkeypatch):
    found = judged_early(monkeypatch, lambda seed: harms[seed])
    assert (found.verdict, found.seeds) == (verdict, tuple(seeds))
    assert found.unharmed == (verdict == "equivalent")
    assert found.sentence.endswith(says)


def test_of_400_plans_that_differ_by_random_numbers_alone_less_than_one_in_a_hundred_is_rejected(monkeypatch):
    random = np.random.default_rng(0)
    verdicts = [judged_early(monkeypatch, lambda seed: random.normal(0, 0.05)).verdict for _ in range(400)]
    assert sum(each in ("harmed", "better") for each in verdicts) < 4
