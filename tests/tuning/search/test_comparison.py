"""Plans beside the one they are to beat: whoever is no faster leaves, whoever fails fails alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hasten.facts.plan import Plan, make_plan
from hasten.measure.paired_timing import early_speedup
from hasten.tuning.search.comparison import Compared, ComparisonSettings, Entry, compare_arms, is_known
from hasten.tuning.search.objective import RunLength, speedup
from hasten.tuning.trials.arms import Arm, Arms
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome

JOBS = Path(__file__).parents[1] / "jobs" / "clocked_jobs.py"
LENGTH = RunLength(steps=100, epochs=2, evaluations=0)
BASE = Entry(name="plain", plan=Plan())
BF16 = Entry(name="bf16", plan=make_plan(precision="bf16"))
ONE_THREAD = Entry(name="one thread", plan=make_plan(threads=1))


class CountedArms(Arms):
    """told: how many are alive whenever one has begun."""

    def __init__(self, job: str, told: Callable[[int], None]) -> None:
        super().__init__(job)
        self._told, self._alive = told, 0

    @contextmanager
    def start(self, name: str, plan: Plan) -> Iterator[Arm]:
        with super().start(name, plan) as arm:
            self._alive += 1
            self._told(self._alive)
            yield arm
        self._alive -= 1


def compare(
    *entries: Entry,
    function: str = "job",
    settings: ComparisonSettings | None = None,
    started: Callable[[int], None] = lambda alive: None,
) -> Compared:
    repeats, settings = list[int](), settings or ComparisonSettings(steps=2)
    arms = CountedArms(f"{JOBS}:{function}", started)
    outcome = compare_arms(
        arms,
        BASE,
        entries,
        settings,
        LENGTH,
        lambda done, whole, ratios: repeats.append(done),
    )
    starts = 1 + len(entries) if settings.resident else 0
    assert repeats == [0] * starts + list(range(1, repeats[-1] + 1))
    return outcome


@pytest.mark.trap(50)
def test_a_planted_gain_is_measured_as_it_is_and_a_planted_slow_down_leaves_at_the_first_look():
    outcome = compare(BF16, ONE_THREAD)
    assert early_speedup(outcome.early["bf16"]).ratio == pytest.approx(2, rel=0.05)
    assert early_speedup(outcome.early["one thread"]).ratio == pytest.approx(2 / 3, rel=0.05)
    assert len(outcome.base.windows) == len(outcome.measured["bf16"].windows) == 3
    assert len(outcome.base.turns) == len(outcome.measured["bf16"].turns) == 1  # which no window met


def test_an_arm_whose_turns_are_the_same_has_those_of_the_base(monkeypatch):
    def ask(arm: Arm, do: str, *given: float, **fields: Any) -> dict[str, Any]:
        answer = asked(arm, do, *given, **fields)
        return {"seconds": {"plain": 9.0, "one thread": 5.0}[arm.name]} if do == "turn" else answer

    asked = Arm.ask
    monkeypatch.setattr(Arm, "ask", ask)
    outcome = compare(replace(BF16, same_turns=True), ONE_THREAD)
    found = outcome.base.turns, outcome.measured["bf16"].turns, outcome.measured["one thread"].turns
    assert found == ((9.0,), (9.0,), (5.0,))


@pytest.mark.proof
def test_a_control_stays_to_the_end_whatever_it_looks_like():
    outcome = compare(
        Entry(name="control", plan=make_plan(threads=1), stays=True), settings=ComparisonSettings(steps=2, checks=())
    )
    assert len(outcome.measured["control"].windows) == 12
    assert speedup(outcome.base, outcome.measured["control"], LENGTH).ratio == pytest.approx(2 / 3, rel=0.05)


@pytest.mark.proof
def test_where_arms_do_not_fit_beside_each_other_each_is_alone_in_its_turn_and_measured_as_it_is():
    alive = list[int]()
    outcome = compare(BF16, settings=ComparisonSettings(steps=2, checks=(3,), resident=False), started=alive.append)
    assert early_speedup(outcome.early["bf16"]).ratio == pytest.approx(2, rel=0.05)
    assert set(alive) == {1}
    assert len(alive) == 2 * 3 + 2  # a process for every window, and for every wait for a new epoch


@pytest.mark.proof
def test_what_has_the_steps_of_the_base_is_compared_by_its_evaluations_alone():
    quick = Entry(name="quick", plan=make_plan(evaluation_batch=400), same_steps=True)
    length = RunLength(steps=100, epochs=1, evaluations=100)
    arms = Arms(f"{JOBS}:evaluating_by_batches")
    outcome = compare_arms(arms, BASE, [quick, BF16], ComparisonSettings(steps=2, checks=()), length, lambda *_: None)
    seen = outcome.measured["quick"]
    assert [window.seconds for window in seen.windows] == [window.seconds for window in outcome.base.windows]
    assert {window.arm for window in seen.windows} == {"quick"}
    assert len(seen.evaluations) == len(outcome.base.evaluations) == 11  # one in every round, and the first is cold
    assert seen.evaluations == pytest.approx([outcome.base.evaluations[0] / 5] * 11)
    assert speedup(outcome.base, seen, length).ratio == pytest.approx((100 + 100 * 5) / (100 + 100), rel=0.05)
    assert outcome.measured["bf16"].evaluations == ()


@pytest.mark.proof
def test_all_go_at_a_look_where_one_says_that_the_comparison_is_over(tmp_path, monkeypatch):
    monkeypatch.setenv("HASTEN_TEST_PROCESSES", str(tmp_path))
    monkeypatch.setenv("HASTEN_TEST_NOISE", "0.05")  # so that three pairs do not tell what the idle arm is
    idle = Entry(name="idle", plan=make_plan(flush_denormals=True))
    control = Entry(name="control", plan=Plan(), stays=True)
    settings = ComparisonSettings(steps=2, ends_all=lambda ratios: ratios[0] > 1.5)
    outcome = compare(BF16, idle, control, settings=settings)
    assert {name: len(ratios) for name, ratios in outcome.early.items()} == {"bf16": 3, "idle": 3, "control": 3}


@pytest.mark.parametrize(("seconds", "pairs"), [(0.0, 3), (3600.0, 12)])
def test_a_comparison_whose_seconds_are_over_ends_after_the_fewest_pairs_that_have_a_spread(
    seconds: float, pairs: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("HASTEN_TEST_PROCESSES", str(tmp_path))
    monkeypatch.setenv("HASTEN_TEST_NOISE", "0.05")
    idle = Entry(name="idle", plan=make_plan(flush_denormals=True), stays=True)
    outcome = compare(idle, settings=ComparisonSettings(steps=1, checks=(), seconds=seconds))
    assert len(outcome.base.windows) == len(outcome.measured["idle"].windows) == pairs
    assert [len(ratios) for ratios in outcome.early.values()] == ([3] if pairs == 3 else [])


def test_an_arm_that_starts_too_slowly_fails_alone_and_says_how_long_it_had():
    slow = replace(BF16, start_seconds=0.0)
    outcome = compare(slow, ONE_THREAD)
    assert outcome.failed["bf16"].outcome is Outcome.LATE
    assert outcome.failed["bf16"].what.startswith("no first step within 0 s")
    assert [*outcome.measured] == ["one thread"]


@pytest.mark.proof
def test_an_arm_lives_in_as_many_processes_one_after_the_other_as_it_was_given_starts():
    alive = list[int]()
    outcome = compare(BF16, settings=ComparisonSettings(steps=2, checks=(), starts=4), started=alive.append)
    assert len(alive) == 2 * 4
    assert max(alive) == 2
    assert len(outcome.measured["bf16"].windows) == len(outcome.base.windows) == 12
    assert speedup(outcome.base, outcome.measured["bf16"], LENGTH).ratio == pytest.approx(2, rel=0.05)


@pytest.mark.proof
def test_the_first_evaluation_of_every_process_is_paid_once():
    settings = ComparisonSettings(steps=2, evaluations=12, checks=(), starts=4)
    outcome = compare(BF16, function="slow_first_evaluation", settings=settings)
    assert outcome.base.evaluations == pytest.approx([5.0] * 8)
    assert outcome.base.one_off == pytest.approx(100.0, rel=0.1)


@pytest.mark.proof
def test_an_arm_that_fails_in_the_middle_leaves_the_comparison_alone():
    control = Entry(name="control", plan=Plan(), stays=True)
    outcome = compare(BF16, control, function="failing_in_bf16", settings=ComparisonSettings(steps=4, checks=()))
    assert outcome.failed["bf16"].outcome is Outcome.CRASHED
    assert len(outcome.measured["control"].windows) == 12


def test_when_the_base_fails_the_comparison_fails():
    with pytest.raises(ArmFailed, match="in every arm"):
        compare(BF16, function="failing_always")


@pytest.mark.parametrize(
    ("ratios", "known"),
    [
        ((0.7, 0.71, 0.7), True),  # slower
        ((1.3, 1.31, 1.3), True),  # clearly faster
        ((1.0, 1.001, 1.0), True),  # not worth seeing
        ((1.04, 1.09, 1.05), False),  # faster, but not clearly
        ((0.9, 1.3, 1.2), False),  # it may yet be
        ((0.9, 1.3, 0.8), False),  # three say too little of their own spread
        ((0.9, 1.2, 0.95, 0.9, 1.1), True),  # out of reach
        ((0.95, 1.12, 1.07, 1.0, 1.1), False),
        ((1.12, 1.13, 0.4, 1.11, 1.12), False),  # one pair was disturbed, and a median hardly minds
    ],
)
def test_who_leaves_is_clearly_faster_or_not_worth_it_or_can_no_longer_be(ratios: tuple[float, ...], known: bool):
    assert is_known(ratios) is known
