"""An interval that also holds for other processes of the same code."""

from __future__ import annotations

import random
from statistics import median

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hasten.facts.choice import Speedup
from hasten.measure.paired_timing import over_processes

SURE = Speedup(ratio=1.5, low=1.49, high=1.51, pairs=12)
RATIOS = st.lists(st.floats(0.5, 2.0), min_size=2, max_size=5)


def test_of_one_start_nobody_knows_how_another_would_have_gone():
    assert over_processes(SURE, [1.5], [1.02]) == SURE


def test_starts_that_lie_apart_make_the_interval_wider_and_leave_the_ratio():
    found = over_processes(SURE, [1.4, 1.6, 1.45, 1.55], [1.0, 1.0, 1.0, 1.0])
    assert found.ratio == SURE.ratio
    assert found.low < 1.45
    assert found.high > 1.55


def test_equal_arms_that_lie_apart_make_it_wider_though_the_starts_agree():
    assert over_processes(SURE, [1.5, 1.5], [1.0, 1.0]) == SURE
    assert over_processes(SURE, [1.5, 1.5], [1.04, 0.96]).low < 1.45


@given(RATIOS, st.lists(st.floats(0.5, 2.0), max_size=5))
def test_it_is_never_narrower_than_the_one_within_the_processes(starts: list[float], equal: list[float]):
    found = over_processes(SURE, starts, equal)
    assert found.low <= SURE.low
    assert found.high >= SURE.high


@pytest.mark.parametrize("starts", [2, 4])
def test_of_a_thousand_intervals_some_ninety_five_in_a_hundred_hold_the_truth(starts: int):
    """The truth is 1, and every process differs by 2 % for as long as it lives."""
    random.seed(0)

    def apart() -> list[float]:
        return [random.lognormvariate(0, 0.02) / random.lognormvariate(0, 0.02) for _ in range(starts)]

    held = 0
    for _ in range(1000):
        ratios = apart()
        within = Speedup(ratio=median(ratios), low=median(ratios), high=median(ratios), pairs=12)
        found = over_processes(within, ratios, apart())
        held += found.low <= 1 <= found.high
    assert 930 <= held <= 980
