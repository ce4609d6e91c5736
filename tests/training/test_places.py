"""Where in the data an optimizer step lies, told from its number alone."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.training.state.data_position import REMEMBERED, Places


@given(lengths=st.lists(st.integers(1, 9), min_size=1, max_size=30))
def test_epochs_of_any_lengths_are_told_apart(lengths):
    places, wanted, step = Places(None), {}, 1
    for epoch, length in enumerate(lengths):
        places.begin(step, epoch, 0)
        wanted |= {step + number: (epoch, number) for number in range(length)}
        step += length
    assert {each: places.of(each) for each in wanted} == wanted


def test_an_epoch_that_is_gone_on_with_or_left_early_counts_from_where_it_was_entered():
    places = Places(10)
    places.begin(24, 2, 3)
    places.begin(26, 3, 0)
    assert [places.of(step) for step in (24, 25, 26, 30)] == [(2, 3), (2, 4), (3, 0), (3, 4)]


@pytest.mark.parametrize(("per_epoch", "of_an_earlier_epoch"), [(10, (1, 9)), (None, None)])
def test_steps_of_an_earlier_process_are_counted_back(per_epoch, of_an_earlier_epoch):
    places = Places(per_epoch)
    assert places.of(1) is None
    places.begin(24, 2, 3)
    assert places.of(21) == (2, 0)
    assert places.of(20) == of_an_earlier_epoch
    assert Places(per_epoch).of(5) is None


def test_a_step_from_before_the_beginning_is_nowhere():
    places = Places(10)
    places.begin(24, 0, 3)  # epochs before it were left out
    assert places.of(20) is None


def test_what_is_remembered_has_an_end():
    places = Places(1)
    for step in range(1, 3 * REMEMBERED):
        places.begin(step, step - 1, 0)
    assert len(places._beginnings) == REMEMBERED
    assert places.of(2) == (1, 0)
