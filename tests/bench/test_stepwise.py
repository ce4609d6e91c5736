from __future__ import annotations

import pytest
from bench.stepwise import stepwise


def test_a_window_runs_exactly_its_steps_and_stops_before_the_next():
    done = []

    def train(tick):
        for step in range(100):
            tick()
            done.append(step)

    window = stepwise(train)
    assert done == []
    for steps, total in ((1, 1), (10, 11), (3, 14)):
        window(steps)
        assert len(done) == total


def test_what_the_trainer_raises_is_raised_by_the_window():
    def train(tick):
        tick()
        tick()
        raise ValueError("at the third step")

    window = stepwise(train)
    window(1)
    with pytest.raises(ValueError, match="at the third step"):
        window(5)


def test_a_trainer_that_cannot_start_says_so_at_once():
    def train(tick):
        raise ValueError("before any step")

    with pytest.raises(ValueError, match="before any step"):
        stepwise(train)


def test_a_trainer_that_ends_early_is_an_error_and_not_a_short_window():
    def train(tick):
        for _ in range(3):
            tick()

    window = stepwise(train)
    with pytest.raises(RuntimeError, match="more steps"):
        window(50)
