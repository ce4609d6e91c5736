"""Plans beside the one they are to beat: whoever is no faster leaves, whoever fails fails alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.facts.plan import Plan, make_plan
from hasten.tune.arms import Arms
from hasten.tune.fate import ArmFailed, Fate
from hasten.tune.heat import Entry, Outcome, Pace, no_faster, run_heat
from hasten.tune.objective import Length, speedup

JOBS = Path(__file__).with_name("clocked_jobs.py")
LENGTH = Length(steps=100, epochs=2, evaluations=0)
BASE = Entry(name="plain", plan=Plan())
BF16 = Entry(name="bf16", plan=make_plan(precision="bf16"))
ONE_THREAD = Entry(name="one thread", plan=make_plan(threads=1))


def heat(*entries: Entry, function: str = "job", pace: Pace | None = None) -> Outcome:
    rounds: list[int] = []
    arms = Arms(f"{JOBS}:{function}")
    outcome = run_heat(
        arms, BASE, entries, pace or Pace(steps=2), LENGTH, lambda done, whole, ratios: rounds.append(done)
    )
    assert rounds == list(range(1, rounds[-1] + 1))
    return outcome


@pytest.mark.trap(50)
def test_a_planted_gain_is_measured_as_it_is_and_a_planted_slow_down_leaves_at_the_first_look():
    outcome = heat(BF16, ONE_THREAD)
    assert speedup(outcome.base, outcome.seen["bf16"], LENGTH).ratio == pytest.approx(2, rel=0.05)
    assert [round(ratio, 1) for ratio in outcome.dropped["one thread"]] == [0.7] * 3
    assert len(outcome.base.windows) == len(outcome.seen["bf16"].windows) == 12
    assert "one thread" not in outcome.seen


def test_a_control_stays_to_the_end_whatever_it_looks_like():
    outcome = heat(Entry(name="control", plan=make_plan(threads=1), stays=True))
    assert len(outcome.seen["control"].windows) == 12


def test_a_heat_is_over_when_nobody_is_left():
    outcome = heat(ONE_THREAD)
    assert len(outcome.base.windows) == 3


def test_an_arm_that_fails_in_the_middle_leaves_the_heat_alone():
    outcome = heat(BF16, Entry(name="control", plan=Plan(), stays=True), function="failing_in_bf16")
    assert outcome.failed["bf16"].fate is Fate.CRASHED
    assert len(outcome.seen["control"].windows) == 12


def test_an_arm_that_cannot_be_built_leaves_the_heat_alone():
    outcome = heat(Entry(name="senseless", plan=make_plan(precision="fp17")), BF16)
    assert outcome.failed["senseless"].fate is Fate.REFUSED
    assert "bf16" in outcome.seen


def test_when_the_base_fails_the_heat_fails():
    with pytest.raises(ArmFailed, match="in every arm"):
        heat(BF16, function="failing_always")


def test_the_wait_for_a_new_epoch_is_measured_also_where_no_window_met_one():
    outcome = heat(BF16, pace=Pace(steps=1, rounds=12))
    assert len(outcome.base.turns) == len(outcome.seen["bf16"].turns) == 1


@pytest.mark.parametrize(
    ("ratios", "leaves"),
    [
        ((0.7, 0.7, 0.7), True),
        ((0.9, 1.2, 0.9), False),  # too noisy to say after three
        ((1.3, 1.3, 1.3), False),
        ((1.0, 1.0, 1.0), True),  # sure to be no faster
        ((0.9, 1.2, 1.0, 0.9, 1.1), True),  # its middle is no gain
        ((0.9, 1.2, 1.03, 1.03, 1.1), False),
    ],
)
def test_who_leaves_is_sure_not_to_be_worth_it_or_is_not_faster_at_five(ratios: tuple[float, ...], leaves: bool):
    assert no_faster(ratios) is leaves
