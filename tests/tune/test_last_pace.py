"""What the last heat does with the time there is."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.facts.choice import Choice, Preserves
from hasten.tune.arms import Arms
from hasten.tune.last_pace import LONG_WINDOW_SECONDS, MOST_STARTS, SETTLED_STEPS, last_pace, last_seconds
from hasten.tune.look import Look, look_at

JOB = f"{Path(__file__).with_name('clocked_jobs.py')}:job"
BF16, CHANNELS = Choice(technique="precision", value="bf16"), Choice(technique="channels_last", value=True)
MORE = Choice(technique="conv_bn_bias", value=True)


@pytest.fixture(scope="module")
def plain() -> Look:
    with Arms(JOB) as arms:
        look = look_at(arms, JOB, Preserves.STATISTICS)
    length = replace(look.length, steps=1000)
    return replace(look, step_seconds=0.05, start_seconds=0.5, length=length, room=10)


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


def test_arms_that_do_not_fit_beside_each_other_begin_in_every_round(plain: Look):
    beside, one_by_one = (last_seconds(replace(plain, room=room), plain, [BF16], []) for room in (3, 2))
    assert one_by_one - beside == pytest.approx(11 * 3 * plain.arm_start_seconds)


def test_compiling_is_paid_by_every_process_that_has_the_plan(plain: Look):
    once = last_seconds(plain, plain, [BF16], [], once=20.0, starts=2)
    assert once - last_seconds(plain, plain, [BF16], [], starts=2) == pytest.approx(2 * 20.0)
