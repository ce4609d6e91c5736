"""What a time budget allows: bounds that are never too tight, and seconds that cannot be believed."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.errors import InvalidMeasurement
from hasten.facts.trials import Budget
from hasten.measure.speedup_bound import EVERYTHING, STEP, Part, PlannedRun, most_gain, reason, share

SECONDS = st.floats(0, 100)
PARTS = st.frozensets(st.sampled_from(Part))
BUDGET = Budget(
    arm="plain",
    data_wait=5.0,
    transfer=1.0,
    forward=2.0,
    backward=4.0,
    optimizer=2.0,
    python=1.0,
    evaluation=25.0,
    steps=10,
)
RUN = PlannedRun(steps=100, evaluations=4, turns=10, turn_seconds=40.0)  # 1,500 + 100 + 400 = 2,000 s

budgets = st.builds(
    Budget,
    arm=st.just("plain"),
    steps=st.just(10),
    data_wait=SECONDS,
    forward=st.floats(0.01, 100),
    **dict.fromkeys(("transfer", "backward", "optimizer", "python", "evaluation"), SECONDS),
)
runs = st.builds(
    PlannedRun,
    steps=st.integers(1, 10_000),
    evaluations=st.integers(0, 50),
    turns=st.integers(0, 50),
    turn_seconds=SECONDS,
    step_seconds=st.none() | st.floats(0.01, 600),
)


@pytest.mark.parametrize(
    ("parts", "left"),
    [
        ({Part.DATA_WAIT}, 1500),
        ({Part.OPTIMIZER}, 1800),
        ({Part.FORWARD, Part.BACKWARD}, 1400),
        ({Part.EVALUATION}, 1900),
        ({Part.TURN}, 1600),
        ({Part.DATA_WAIT, Part.TRANSFER, Part.EVALUATION, Part.TURN}, 900),
        (STEP, 500),
        (set(), 2000),
    ],
)
def test_the_bound_is_the_planned_run_without_the_seconds_of_those_parts(parts, left):
    assert most_gain(BUDGET, RUN, frozenset(parts)) == pytest.approx(2000 / left)
    assert share(BUDGET, RUN, frozenset(parts)) == pytest.approx(1 - left / 2000)


@given(budgets, runs, PARTS, st.floats(0.01, 1))
def test_nothing_that_shortens_those_parts_alone_can_beat_its_bound(budget, run, parts, left):
    """left: of what the parts took."""
    run = replace(run, step_seconds=None)
    shorter = replace(budget, **{part: left * getattr(budget, part) for part in parts - {Part.TURN}})
    turn = run.turn_seconds * (left if Part.TURN in parts else 1)
    before, after = (
        run.steps * each.step + run.evaluations * each.evaluation + run.turns * seconds
        for each, seconds in ((budget, run.turn_seconds), (shorter, turn))
    )
    assert before <= after * most_gain(budget, run, parts) * (1 + 1e-9)


def test_a_step_that_nobody_looked_into_loosens_the_bound_and_never_tightens_it():
    update = frozenset({Part.OPTIMIZER})
    run = PlannedRun(steps=100)
    assert most_gain(BUDGET, run, update) == pytest.approx(15 / 13)
    assert most_gain(BUDGET, replace(run, step_seconds=10.0), update) == pytest.approx(10 / 8)
    assert most_gain(BUDGET, replace(run, step_seconds=20.0), update) == pytest.approx(15 / 13)
    assert most_gain(BUDGET, replace(run, step_seconds=1.5), update) == math.inf
    with_evaluations = replace(
        run, step_seconds=1.5, evaluations=2
    )  # an update longer than that step takes none of them
    assert most_gain(BUDGET, with_evaluations, update) == pytest.approx(200 / 50)


@pytest.mark.parametrize(
    ("parts", "words"),
    [
        (
            {Part.OPTIMIZER},
            "at most 11.2 % to gain: it can only shorten the update, which takes 10.0 % of the planned run after "
            "startup",
        ),
        (
            {Part.DATA_WAIT, Part.EVALUATION, Part.TURN},
            "at most 2.0 times as fast: it can only shorten waiting for data, evaluation and the turns of the epochs, "
            "which take 50.0 % of the planned run after startup",
        ),
        (set(), "nothing to gain: it makes no part of the planned run shorter"),
        (EVERYTHING, "no bound: nothing of the planned run is out of its reach"),
    ],
)
def test_the_reason_says_what_could_be_gained_where_and_that_it_is_a_bound(parts, words):
    assert reason(BUDGET, RUN, frozenset(parts)) == words


def test_a_bound_is_rounded_up_and_not_by_what_floats_add():
    small = replace(BUDGET, optimizer=0.06, python=2.94)
    found = reason(small, PlannedRun(steps=1), frozenset({Part.OPTIMIZER}))
    assert found.startswith("at most 0.5 % to gain, and less than 1 % is not tried: it can only shorten the update, ")
    assert "takes 0.4 %" in found


@pytest.mark.trap(51)
@pytest.mark.parametrize("seconds", [math.nan, math.inf])
def test_seconds_that_cannot_be_are_an_error(seconds):
    with pytest.raises(InvalidMeasurement, match=r"take (nan|inf) seconds"):
        most_gain(replace(BUDGET, forward=seconds), RUN, frozenset({Part.OPTIMIZER}))


def test_a_run_that_takes_no_time_is_an_error():
    with pytest.raises(InvalidMeasurement, match="the planned run takes 0"):
        most_gain(BUDGET, PlannedRun(steps=0), STEP)
