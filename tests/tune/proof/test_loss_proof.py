"""What pairs of runs say of a plan's loss, and that nothing spoils the sample that is judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.errors import Misconfigured
from hasten.facts.plan import Plan
from hasten.measure.loss_equivalence import Criterion
from hasten.tune.proof.loss_proof import EARLY, TRAINING, criterion_of, judged, paired_curves, prove_loss, value_of
from hasten.tune.proof.paired_runs import Pair, Pairing, PlannedRun, Trained
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed, Fate
from tune.jobs.loss_jobs import PLAN

JOBS = Path(__file__).parents[1] / "jobs" / "loss_jobs.py"
LIMIT = 60.0


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


def test_a_metric_of_which_more_is_better_is_judged_the_other_way():
    proof = judged(WORSE, Criterion(metric="right", higher_is_better=True), 3)
    assert proof.verdict == "harmed"
    assert proof.judgement is not None
    assert proof.judgement.harm > 0.05


def test_without_an_evaluation_the_end_of_training_is_judged():
    found = [
        Pair(seed=seed, plain=run(1.0, first=9.0 + seed, end=2.0), planned=run(7.0, first=9.0 + seed, end=2.0))
        for seed in range(3)
    ]
    assert judged(found, Criterion(metric=TRAINING), 3).verdict == "equivalent"
    assert judged(found, Criterion(metric="loss"), 3).verdict == "harmed"


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


def test_a_short_run_whose_loss_has_risen_is_judged_by_what_it_has_become():
    def risen(seed: int, end: float) -> Trained:
        return Trained(losses=(0.01, 0.01, 0.01 + seed / 1e4, end, end, end), results={})

    found = [Pair(seed=seed, plain=risen(seed, 1.0), planned=risen(seed, 1.005)) for seed in range(3)]
    assert judged(found, Criterion(metric=EARLY, margin=0.01), 3).verdict == "equivalent"


@pytest.mark.trap(51)
def test_a_planned_run_that_became_nan_is_harm_whatever_the_other_pairs_say():
    lost = ArmFailed("planned", Fate.NON_FINITE, "the loss of step 7 is nan")
    proof = judged([*SAME, Pair(seed=3, plain=run(2.0), planned=lost)], Criterion(), 5)
    assert (proof.verdict, proof.judgement, proof.failure) == ("harmed", None, None)
    assert "with seed 3 the planned run became not finite (the loss of step 7 is nan)" in proof.sentence


@pytest.mark.trap(51)
@pytest.mark.parametrize("planned", [run(2.0), ArmFailed("planned", Fate.NON_FINITE, "step 7")])
def test_where_the_plain_run_failed_nothing_is_said_of_the_plan(planned):
    lost = ArmFailed("plain", Fate.NON_FINITE, "the loss of step 7 is nan")
    proof = judged([*SAME, Pair(seed=3, plain=lost, planned=planned)], Criterion(), 5)
    assert (proof.verdict, proof.judgement, proof.failure) == ("failed", None, lost)
    assert "the plain job itself failed with seed 3" in proof.sentence


@pytest.mark.parametrize("fate", [fate for fate in Fate if fate is not Fate.NON_FINITE])
def test_a_plan_that_fails_for_another_reason_did_no_harm_to_a_loss_and_is_not_proven(fate):
    lost = ArmFailed("planned", fate, "it is so")
    proof = judged([*SAME, Pair(seed=3, plain=run(2.0), planned=lost)], Criterion(), 5)
    assert (proof.verdict, proof.judgement, proof.failure) == ("failed", None, lost)


def test_too_few_pairs_say_so_and_nothing_else():
    proof = judged(SAME[:2], Criterion(), 5, KeyboardInterrupt())
    assert (proof.verdict, proof.judgement) == ("inconclusive", None)
    assert proof.sentence == "2 of 5 pairs were trained, too few to say anything: 3 are the least"


def test_a_test_that_ended_early_says_so_beside_its_verdict():
    proof = judged(SAME, Criterion(), 5, KeyboardInterrupt())
    assert proof.verdict == "equivalent"
    assert "ended after 3 of 5 pairs" in proof.sentence


def test_what_cannot_be_judged_keeps_its_pairs_and_says_why():
    zero = [
        Pair(seed=seed, plain=Trained(losses=(float(seed),), results={"loss": 0.0}), planned=run(0.1))
        for seed in range(3)
    ]
    proof = judged(zero, Criterion(), 3)
    assert (proof.verdict, proof.judgement, len(proof.pairs)) == ("inconclusive", None, 3)
    assert "the plain arm's mean is zero" in proof.sentence


def test_losses_of_runs_of_another_length_are_not_compared():
    longer = [Pair(seed=seed, plain=run(2.0, first=seed), planned=run(2.0, steps=30)) for seed in range(3)]
    assert "not as many steps" in judged(longer, Criterion(metric=TRAINING), 3).sentence
    assert judged(longer, Criterion(metric="loss"), 3).verdict == "equivalent"


@pytest.mark.parametrize(
    ("metrics", "asked", "expected"),
    [
        ({"loss": False, "right": True}, "loss", Criterion(metric="loss")),
        ({"loss": False, "right": True}, "right", Criterion(metric="right", higher_is_better=True)),
        ({}, "loss", Criterion(metric=TRAINING)),
    ],
)
def test_what_is_judged_follows_from_what_the_job_evaluates(metrics, asked, expected):
    assert criterion_of(PlannedRun(steps=9, seed=0, metrics=metrics), asked, 0.005) == expected


@pytest.mark.parametrize(
    ("metrics", "asked", "says"),
    [
        ({"loss": False, "right": True}, "rihgt", 'did you mean "right"'),
        ({}, "right", "give valid data"),
        ({"loss": False, "silent": None}, "silent", "does not say whether higher is better"),
    ],
)
def test_a_metric_that_cannot_be_judged_is_refused(metrics, asked, says):
    with pytest.raises(Misconfigured, match=says):
        criterion_of(PlannedRun(steps=9, seed=0, metrics=metrics), asked, 0.005)


# ── training ────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.trap(50)
def test_the_same_plan_in_both_arms_gives_the_same_bits_and_is_equivalent():
    proof = prove_loss(arms(), Plan(), pairs=3)
    assert proof.verdict == "equivalent"
    assert [pair.seed for pair in proof.pairs] == [0, 1, 2]
    assert all(pair.plain == pair.planned for pair in proof.pairs)
    assert len({pair.plain.losses for pair in proof.pairs if isinstance(pair.plain, Trained)}) == 3


@pytest.mark.trap(50)
def test_a_planned_arm_that_trains_something_else_is_called_so():
    proof = prove_loss(arms("another_rate_when_planned"), PLAN, pairs=3, margin=0.01, first_seed=5)
    assert [pair.seed for pair in proof.pairs] == [5, 6, 7]
    assert proof.verdict == "harmed"


def test_without_valid_data_the_training_loss_is_judged():
    proof = prove_loss(arms("without_valid"), Plan(), pairs=3)
    assert (proof.criterion.metric, proof.verdict) == (TRAINING, "equivalent")


def test_seeds_that_change_nothing_are_no_sample():
    proof = prove_loss(arms("deaf_to_seeds"), Plan(), pairs=3)
    assert (proof.verdict, proof.judgement) == ("inconclusive", None)
    assert "seeds 0 and 1 gave the same losses to the last bit" in proof.sentence


def test_the_arm_that_runs_first_changes_from_pair_to_pair(tmp_path, monkeypatch):
    journal = tmp_path / "journal"
    monkeypatch.setenv("HASTEN_TEST_JOURNAL", str(journal))
    seen: list[tuple[int, int]] = []
    prove_loss(arms("noted"), PLAN, pairs=3, watch=lambda done, whole: seen.append((done, whole)))
    turns = list(dict.fromkeys(journal.read_text().splitlines()))
    assert turns == ["plain 0", "planned 0", "planned 1", "plain 1", "plain 2", "planned 2"]
    assert seen[-1] == (96, 96)
    assert seen == sorted(seen)


@pytest.mark.trap(51)
def test_a_run_that_fails_ends_the_proof_and_its_arm_is_there_again_for_who_asks_for_more():
    proof = prove_loss(arms("not_finite_with_seed_one_when_planned"), PLAN, pairs=3)
    assert (proof.verdict, len(proof.pairs)) == ("harmed", 2)
    with Pairing(arms("not_finite_with_seed_one_when_planned"), PLAN, LIMIT) as pairing:
        found = list(pairing.pairs([1, 2], None, "loss", lambda done, whole: None))
    assert [pair.failed for pair in found] == [True, False]


@pytest.mark.proof
def test_where_memory_does_not_hold_both_arms_they_live_one_after_the_other(tmp_path, monkeypatch):
    journal = tmp_path / "journal"
    monkeypatch.setenv("HASTEN_TEST_JOURNAL", str(journal))
    with Pairing(arms("full_beside_another"), PLAN, LIMIT) as pairing:
        found = list(pairing.pairs([0, 1, 2], None, "loss", lambda done, whole: None))
    assert not any(pair.failed for pair in found)
    assert len(set(journal.read_text().split())) == 7  # one that had no room, and one for each run


def test_a_plan_for_which_there_is_no_room_at_all_fails_by_that():
    proof = prove_loss(arms("full_when_planned"), PLAN, pairs=3)
    assert proof.failure is not None
    assert (proof.verdict, proof.failure.fate) == ("failed", Fate.OUT_OF_MEMORY)


@pytest.mark.parametrize(("finished", "verdict"), [(2, "inconclusive"), (4, "equivalent")])
def test_an_interruption_keeps_what_the_finished_pairs_say(finished, verdict):
    def interrupt(done: int, whole: int) -> None:
        if done > finished * 2 * 16:
            raise KeyboardInterrupt

    proof = prove_loss(arms(), Plan(), pairs=6, watch=interrupt)
    assert proof.interrupted
    assert (len(proof.pairs), proof.verdict) == (finished, verdict)


def test_a_plain_job_that_cannot_be_built_is_no_proof():
    with pytest.raises(ArmFailed) as caught:
        prove_loss(arms("not_there"), Plan(), pairs=3)
    assert caught.value.fate is Fate.REFUSED


@pytest.mark.parametrize("count", [0, 2])
def test_fewer_than_three_pairs_are_refused_before_anything_runs(count):
    with pytest.raises(Misconfigured, match="too few"):
        prove_loss(arms("not_there"), Plan(), pairs=count)
    with pytest.raises(Misconfigured, match="too few"):
        paired_curves(arms("not_there"), Plan(), range(count), 5)


# ── short runs ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_short_curves_of_equal_arms_are_equivalent():
    found = paired_curves(arms(), Plan(), [4, 5, 6], 6)
    assert (found.verdict, found.seeds, found.plain) == ("equivalent", (4, 5, 6), found.planned)
    assert [len(curve) for curve in found.plain] == [6, 6, 6]
    assert found.sentence.startswith("the first 6 steps: early training loss is equivalent with 3 pairs")


def test_short_curves_reject_what_does_visible_harm():
    assert paired_curves(arms("another_rate_when_planned"), PLAN, range(5), 16).verdict == "harmed"


@pytest.mark.trap(51)
def test_short_curves_of_a_plan_that_becomes_nan_are_harmed_and_hold_only_whole_pairs():
    found = paired_curves(arms("not_finite_with_seed_one_when_planned"), PLAN, range(3), 12)
    assert (found.verdict, found.seeds, len(found.plain)) == ("harmed", (0,), 1)


@pytest.mark.parametrize(
    ("function", "fate"), [("never_finite", Fate.NON_FINITE), ("full_when_planned", Fate.OUT_OF_MEMORY)]
)
def test_short_curves_raise_what_says_nothing_of_the_loss(function, fate):
    with pytest.raises(ArmFailed) as caught:
        paired_curves(arms(function), PLAN, range(3), 12)
    assert caught.value.fate is fate
