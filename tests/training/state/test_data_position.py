"""Where in the data an optimizer step was, from its number alone."""

from __future__ import annotations

import pytest

from hasten.training.batches.training_data import DataPosition


def started(position: DataPosition, step: int, epoch: int, window: int) -> DataPosition:
    position.epoch, position.window = epoch, window
    position.start_pass(step)
    return position


@pytest.mark.parametrize(("per_epoch", "of_an_earlier_epoch"), [(10, (1, 9)), (None, None)])
def test_steps_of_an_earlier_process_are_counted_back(per_epoch, of_an_earlier_epoch):
    position = DataPosition(per_epoch)
    assert position.of(1) is None
    started(position, 24, 2, 3)
    assert [position.of(step) for step in (21, 24, 25)] == [(2, 0), (2, 3), (2, 4)]
    assert position.of(20) == of_an_earlier_epoch


def test_a_step_before_the_first_epoch_has_no_place():
    assert started(DataPosition(10), 24, 0, 3).of(20) is None


def test_going_back_to_a_step_makes_it_the_next():
    position = started(DataPosition(10), 24, 2, 3)
    position.window = 6
    position.go_back_to(25)
    assert (position.epoch, position.window) == (2, 4)
