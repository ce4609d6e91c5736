"""Where in the data an optimizer step was, from its number alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.training.batches.training_data import REMEMBERED, DataPosition


def started(position: DataPosition, step: int, epoch: int, window: int) -> DataPosition:
    position.epoch, position.window = epoch, window
    position.start_pass(step)
    return position


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_steps_are_found_in_epochs_of_any_lengths(lengths):
    position, wanted, step = DataPosition(None), {}, 1
    for epoch, length in enumerate(lengths):
        started(position, step, epoch, 0)
        wanted |= {step + number: (epoch, number) for number in range(length)}
        step += length
    assert {each: position.of(each) for each in wanted} == wanted


def test_an_epoch_that_is_entered_in_its_middle_counts_from_there():
    position = started(started(DataPosition(10), 24, 2, 3), 26, 3, 0)
    assert [position.of(step) for step in (24, 25, 26, 30)] == [(2, 3), (2, 4), (3, 0), (3, 4)]


@pytest.mark.parametrize(("per_epoch", "of_an_earlier_epoch"), [(10, (1, 9)), (None, None)])
def test_steps_of_an_earlier_process_are_counted_back(per_epoch, of_an_earlier_epoch):
    position = DataPosition(per_epoch)
    assert position.of(1) is None
    started(position, 24, 2, 3)
    assert position.of(21) == (2, 0)
    assert position.of(20) == of_an_earlier_epoch


def test_a_step_before_the_first_epoch_has_no_place():
    assert started(DataPosition(10), 24, 0, 3).of(20) is None


def test_old_passes_are_forgotten_and_counted_back():
    position = DataPosition(1)
    for step in range(1, 3 * REMEMBERED):
        started(position, step, step - 1, 0)
    assert position.of(2) == (1, 0)


def test_going_back_to_a_step_makes_it_the_next():
    position = started(DataPosition(10), 24, 2, 3)
    position.window = 6
    position.go_back_to(25)
    assert (position.epoch, position.window) == (2, 4)
