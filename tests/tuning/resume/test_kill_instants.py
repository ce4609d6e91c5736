"""The instants at which runs are killed: drawn before, spread over all that a run does."""

from __future__ import annotations

from collections import Counter

import pytest

from hasten.tuning.resume.resume_proof import Instant, Phase, RunTimes, draw, missed, training_seconds

PACE = RunTimes(starting_seconds=3.0, resuming_seconds=1.0, step_seconds=0.5, save_seconds=0.1)


def test_a_seed_gives_the_same_instants_and_another_seed_others():
    assert draw(10, seed=3) == draw(10, seed=3)
    assert draw(10, seed=3) != draw(10, seed=4)
    assert all(0 <= each.share < 1 for each in draw(50, seed=0))


def test_most_of_them_meet_training_saving_and_resuming():
    phases = Counter(each.phase for each in draw(30, seed=1))
    assert phases == {Phase.TRAINING: 12, Phase.GOING_ON: 9, Phase.SAVING: 6, Phase.STARTING: 3}
    assert {each.phase for each in draw(2, seed=1)} == {Phase.TRAINING, Phase.GOING_ON}


def test_the_first_one_lets_the_run_come_to_its_first_steps():
    assert {draw(10, seed)[0].phase for seed in range(10)} == {Phase.TRAINING}


def test_together_they_use_up_the_run_and_the_last_one_may_come_anywhere_in_what_is_left():
    coming = [Instant(phase=phase, share=0.5) for phase in (Phase.TRAINING, Phase.SAVING)]
    assert training_seconds(PACE, 60, coming) == pytest.approx(60 * 0.5 / 3)  # a third each, and one for the rest
    last = Instant(phase=Phase.TRAINING, share=0.999)
    assert training_seconds(PACE, 40, [last]) < 40 * PACE.step_seconds
    resting = [Instant(phase=Phase.GOING_ON, share=0.5)] * 5
    assert training_seconds(PACE, 60, [*coming, *resting]) == training_seconds(PACE, 60, coming)


def test_an_instant_that_was_missed_comes_again_and_earlier():
    late = Instant(phase=Phase.SAVING, share=0.8)
    again = missed(late)
    assert (again.phase, again.share) == (Phase.TRAINING, 0.4)
    assert missed(again).share == 0.2
