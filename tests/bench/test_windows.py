"""Windows of a training that has no end, and of a trainer whose loop is its own."""

from __future__ import annotations

import pytest
from bench.endless import endless
from bench.stepwise import stepwise


def test_windows_go_on_where_the_last_one_ended_and_from_epoch_to_epoch():
    taken = []
    epochs = iter("abcdefgh")

    def epoch():
        name = next(epochs)
        for batch in range(3):
            taken.append(f"{name}{batch}")
            yield batch

    window = endless(epoch)
    assert taken == []
    window(2)
    assert taken == ["a0", "a1"]
    window(5)
    assert taken == ["a0", "a1", "a2", "b0", "b1", "b2", "c0"]


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


def test_a_trainer_that_ends_early_is_an_error_and_not_a_short_window():
    def train(tick):
        for _ in range(3):
            tick()

    window = stepwise(train)
    with pytest.raises(RuntimeError, match="more steps"):
        window(50)
