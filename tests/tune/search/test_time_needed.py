"""What the last heat does with the time there is."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.facts.choice import Choice, Preserves
from hasten.measure.paired_timing import LEAST_PAIRS
from hasten.tune.search.comparison import Pace
from hasten.tune.search.confirmation import confirm
from hasten.tune.search.objective import Length
from hasten.tune.search.plan_profile import Look, look_at
from hasten.tune.search.time_needed import (
    LONG_WINDOW_SECONDS,
    MOST_STARTS,
    SETTLED_STEPS,
    last_arms,
    last_pace,
    last_seconds,
)
from hasten.tune.trials.arms import Arms

JOB = f"{Path(__file__).parents[1] / 'jobs' / 'clocked_jobs.py'}:job"
BF16, CHANNELS = Choice(technique="precision", value="bf16"), Choice(technique="channels_last", value=True)
MORE = Choice(technique="conv_bn_bias", value=True)


@pytest.fixture(scope="module")
def plain() -> Look:
    with Arms(JOB) as arms:
        look = look_at(arms, JOB, Preserves.STATISTICS)
    length = replace(look.length, steps=1000)
    return replace(look, step_seconds=0.05, start_seconds=0.5, length=length, room=10)


@pytest.mark.proof
@given(seconds=st.floats(0, 500), faster=st.floats(0.5, 5), many=st.integers(0, 3))
def test_what_it_is_given_is_enough_for_what_it_does_unless_it_is_the_least(
    plain: Look, seconds: float, faster: float, many: int
):
    look, choices = replace(plain, step_seconds=plain.step_seconds / faster), [BF16, CHANNELS, MORE][: max(many, 1)]
    pace = last_pace(plain, look, choices, [], 0.0, seconds)
    least = last_seconds(plain, look, choices, [])
    taken = last_seconds(plain, look, choices, [], steps=pace.steps, starts=pace.starts)
    assert taken <= max(seconds, least)


def test_time_goes_to_windows_that_a_switch_hardly_shows_in_then_to_processes_and_what_is_left_to_longer_windows(
    plain: Look,
):
    paces = [last_pace(plain, plain, [BF16], [], 0.0, float(seconds)) for seconds in range(200)]
    starts = [pace.starts for pace in paces]
    assert starts == sorted(starts)
    assert {*starts} == {*range(1, MOST_STARTS + 1)}
    assert all(pace.steps >= SETTLED_STEPS for pace in paces if pace.starts > 1)
    assert paces[0].steps == 4
    assert paces[-1].steps == LONG_WINDOW_SECONDS / plain.step_seconds


# In the order of the arguments, one with a heat of its own for each choice; the rest of all combinations is the proof.
SAMPLE = {(2, 1, 2), (3, 2, 2)}


@pytest.mark.parametrize(
    ("room", "starts", "choices"),
    [
        pytest.param(*each, marks=() if each in SAMPLE else pytest.mark.proof)
        for each in product((1, 2, 3, 4, 10), (1, 2), (1, 2))
    ],
)
def test_the_last_heat_has_as_many_processes_as_are_reckoned_with(
    plain: Look, room: int, starts: int, choices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    """Two choices, of which one saves half and the other a part, so that nothing goes."""
    plan = (Choice(technique="microbatch", value=4), Choice(technique="precision", value="bf16"))[:choices]
    monkeypatch.setenv("HASTEN_TEST_PROCESSES", str(tmp_path))
    with Arms(JOB) as arms:
        arms.room = lambda bytes_of_one: room - 1  # type: ignore[method-assign]
        pace, length = Pace(steps=2, starts=starts), Length(steps=100, epochs=1, evaluations=0)
        final = confirm(arms, plan, pace, length, lambda *_: None, lambda _: None, room=room, again=lambda left: None)
    reckoned = last_arms(replace(plain, room=room), plan, [], starts, is_far=True)
    begun = len(list(tmp_path.iterdir()))
    early = len(final.outcome.early)  # they leave before they begin anew
    if room == 1 and choices > 1:  # each choice has a heat of its own, which ends when the plan without it leaves
        early += 2 * choices
    assert reckoned.plain_processes + reckoned.plan_processes - begun in range(early * LEAST_PAIRS + 1)
    assert begun >= 3


def test_compiling_is_paid_by_every_process_that_has_the_plan(plain: Look):
    once = last_seconds(plain, plain, [BF16], [], once=20.0, starts=2)
    assert once - last_seconds(plain, plain, [BF16], [], starts=2) == pytest.approx(2 * 20.0)
