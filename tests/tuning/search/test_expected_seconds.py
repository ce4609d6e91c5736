"""How long the parts of a search take, and what the confirmation does with the time there is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.facts.choice import Choice, Preserves
from hasten.tuning.search.expected_seconds import (
    LONG_WINDOW_SECONDS,
    MOST_STARTS,
    SETTLED_STEPS,
    SLACK,
    TIMED_SECONDS,
    acceptance_seconds,
    confirmation_seconds,
    confirmation_settings,
    end_seconds,
    proofs_seconds,
    seconds_to_confirm,
)
from hasten.tuning.search.objective import Interruptions, RunLength
from tuning.search.test_rounds import profile

BF16, CHANNELS = Choice(technique="precision", value="bf16"), Choice(technique="channels_last", value=True)
MORE = Choice(technique="conv_bn_bias", value=True)
PLAIN = profile()


@given(seconds=st.floats(0, 500), faster=st.floats(0.5, 5), many=st.integers(0, 3))
def test_what_it_is_given_is_enough_for_what_it_does_unless_it_is_the_least(seconds: float, faster: float, many: int):
    planned = replace(PLAIN, step_seconds=PLAIN.step_seconds / faster)
    choices = [BF16, CHANNELS, MORE][: max(many, 1)]
    settings = confirmation_settings(PLAIN, planned, choices, 0.0, seconds)
    least = confirmation_seconds(PLAIN, planned, choices)
    taken = confirmation_seconds(PLAIN, planned, choices, steps=settings.steps, starts=settings.starts)
    assert taken <= max(seconds, least)


def test_time_goes_to_windows_that_a_switch_hardly_shows_in_then_to_processes_and_what_is_left_to_longer_windows():
    all_settings = [confirmation_settings(PLAIN, PLAIN, [BF16], 0.0, float(seconds)) for seconds in range(200)]
    starts = [settings.starts for settings in all_settings]
    assert starts == sorted(starts)
    assert {*starts} == {*range(1, MOST_STARTS + 1)}
    assert all(settings.steps >= SETTLED_STEPS for settings in all_settings if settings.starts > 1)
    assert all_settings[0].steps == 4
    assert all_settings[-1].steps == LONG_WINDOW_SECONDS / PLAIN.step_seconds


@pytest.mark.parametrize(("claim", "arms"), [(Preserves.STATISTICS, 2), (Preserves.TRAINING, 0)])
def test_the_recipe_of_a_script_is_read_in_a_process_of_the_baseline_and_one_of_the_plan(claim: Preserves, arms: int):
    choices = [replace(BF16, preserves=claim)]
    without, read = (end_seconds(replace(PLAIN, recipe_steps=steps), PLAIN, choices, asked=60.0) for steps in (0, 16))
    assert read - without == pytest.approx(SLACK * arms * (PLAIN.start_seconds + 16 * PLAIN.step_seconds))


def test_a_proof_of_the_gradients_of_a_script_takes_the_steps_of_all_its_arms():
    slow = replace(PLAIN, step_seconds=3.0, gradient_steps=82, gradient_processes=5)
    threads = Choice(technique="threads", value=1, preserves=Preserves.ROUNDING)
    assert proofs_seconds(slow, slow, [threads], asked=60.0) == pytest.approx(5 * slow.start_seconds + 82 * 3.0)


def test_a_patched_script_is_run_in_its_trial_and_plainly_in_time_that_the_confirmation_leaves():
    script = replace(PLAIN, accepted_steps=16, length=replace(PLAIN.length, process_seconds=3.0))
    runs = 3.0 + 2 * (PLAIN.start_seconds + 16 * PLAIN.step_seconds + TIMED_SECONDS)
    of_job, of_script = (end_seconds(each, each, [BF16], asked=60.0) for each in (PLAIN, script))
    assert of_script - of_job == pytest.approx(SLACK * runs)
    assert seconds_to_confirm(PLAIN, 30.0) - seconds_to_confirm(script, 30.0) == pytest.approx(runs)


def test_a_patched_script_with_long_steps_is_timed_while_its_losses_are_compared():
    short = replace(PLAIN, accepted_steps=8, step_seconds=0.1)
    long = replace(short, step_seconds=0.2)
    assert acceptance_seconds(short) == pytest.approx(2 * (PLAIN.start_seconds + 8 * 0.1 + TIMED_SECONDS))
    assert acceptance_seconds(long) == pytest.approx(2 * (PLAIN.start_seconds + 8 * 0.2))


def test_what_a_script_does_between_its_steps_is_in_the_time_of_proofs_and_more_often_in_that_of_windows():
    """Planted: every other step is interrupted for as long as it takes, so a window waits for three steps' time."""
    met = RunLength(steps=1000, epochs=1, evaluations=0, interruptions=Interruptions([0.05] * 5, among=10))
    often = replace(PLAIN, length=met, interruption_seconds=0.025, recipe_steps=16)
    never = replace(PLAIN, recipe_steps=16)
    bits = [replace(BF16, preserves=Preserves.BITS)]
    proofs = [proofs_seconds(each, each, bits, asked=60.0) for each in (never, often)]
    assert proofs[1] - proofs[0] == pytest.approx(4 * 16 * 0.025)
    assert often.window_seconds == pytest.approx(3 * never.window_seconds)
    confirmed = [confirmation_seconds(each, each, bits) for each in (never, often)]
    assert confirmed[1] - confirmed[0] > 2 * 3 * 12 * never.window_seconds


def test_compiling_is_paid_by_every_process_that_has_the_plan():
    once = confirmation_seconds(PLAIN, PLAIN, [BF16], once=20.0, starts=2)
    assert once - confirmation_seconds(PLAIN, PLAIN, [BF16], starts=2) == pytest.approx(2 * 20.0)


def test_an_evaluation_between_epochs_is_in_the_time_of_all_that_passes_one():
    length = replace(PLAIN.length, epochs=2, turn_seconds=6.0)
    short, long = (replace(PLAIN, length=each, recipe_steps=16) for each in (replace(length, turn_seconds=0.0), length))
    bits, plan = [replace(BF16, preserves=Preserves.BITS)], [BF16, CHANNELS]
    proofs = [proofs_seconds(each, each, bits, asked=60.0) for each in (short, long)]
    assert proofs[1] - proofs[0] == pytest.approx(4 * 6.0)
    confirmed = [confirmation_seconds(each, each, plan) for each in (short, long)]
    assert confirmed[1] - confirmed[0] == pytest.approx(
        5 * 6.0
    )  # the plan, it without each choice, and the baseline twice
