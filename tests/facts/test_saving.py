"""What a user can set about saving."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.errors import Misconfigured
from hasten.facts.saving import MOST_COST, Saving, seconds_between


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("keep_last", 1),
        ("keep_last", True),
        ("keep_every", 0),
        ("every_steps", 0),
        ("every_steps", "10"),
        ("every_seconds", float("nan")),
        ("grace_seconds", True),
        ("grace_seconds", math.inf),
    ],
)
def test_a_setting_that_makes_no_sense_is_refused_by_name_with_what_to_write(name, value):
    with pytest.raises(Misconfigured) as caught:
        Saving(**{name: value})
    assert caught.value.where == f"Saving.{name}"
    assert caught.value.fix.startswith("write ")


@given(st.floats(0, 1e6), st.floats(0, 1e6))
def test_the_time_between_two_saves_is_what_was_asked_for_and_enough_that_saving_costs_little(asked, cost):
    seconds = seconds_between(Saving(every_seconds=asked), cost)
    assert seconds >= asked
    assert cost <= seconds * MOST_COST * (1 + 1e-9)
    assert seconds in (asked, cost / MOST_COST)
