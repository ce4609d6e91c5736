"""A first step that differs by more than rounding is another one, unless it differs from seed to seed as much."""

from __future__ import annotations

import math

import pytest

from hasten.tuning.proof.first_step import BOUND, beyond_rounding


@pytest.mark.parametrize(
    ("change", "noise"),
    [(0.0, 0.0), (BOUND / 2, 0.0), (-BOUND / 2, 0.001), (0.1, 0.05), (0.0, 0.5)],
)
def test_rounding_and_other_random_numbers_are_no_other_step(change: float, noise: float):
    planned = [1 + change + noise * each for each in (-1, 0, 1)]
    assert beyond_rounding("the loss", [(2.0, 2 * each) for each in planned]) == ""


@pytest.mark.parametrize(("change", "noise"), [(-0.1, 0.0), (-0.1, 0.005), (1.0, 0.05)])
def test_what_is_the_same_from_every_seed_is_one(change: float, noise: float):
    planned = [1 + change + noise * each for each in (-1, 0, 1)]
    for scale in (3.0, -3.0):  # a loss can be negative
        found = beyond_rounding("the loss", [(scale, scale * each) for each in planned])
        assert found.startswith("the loss of the first step, before any update, is ")
        assert f"{abs(change):.1%} {'larger' if change * scale > 0 else 'smaller'} with it, from 3 seeds" in found


def test_one_seed_and_numbers_that_are_zero_say_nothing():
    assert beyond_rounding("the loss", [(1.0, 2.0)]) == ""
    assert beyond_rounding("the loss", [(0.0, 2.0)] * 3) == ""


@pytest.mark.parametrize("number", [math.nan, math.inf])
def test_only_a_plan_whose_number_alone_is_not_finite_has_another_step(number: float):
    assert beyond_rounding("the loss", [(number, number), (1.0, 1.0), (2.0, 2.0)]) == ""
    found = beyond_rounding("the loss", [(1.0, number), (1.0, 1.0), (2.0, 2.0)])
    assert found == f"the loss of the first step, before any update, is {number} with it"
