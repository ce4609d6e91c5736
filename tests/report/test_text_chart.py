"""Curves in a terminal."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from hasten.report.terminal.text_chart import chart


def columns(lines: list[str], width: int) -> list[int]:
    """How many eighths of a row each column shows."""
    blocks = " ▁▂▃▄▅▆▇█"
    rows = [line.partition("┤")[2].ljust(width) for line in lines]
    return [sum(blocks.index(row[column]) for row in rows) for column in range(width)]


def test_a_rising_line_rises_from_the_label_below_to_the_label_above():
    lines = chart([0.0, 1.0, 2.0, 3.0, 4.0], width=5, height=2)
    assert columns(lines, 5) == [0, 4, 8, 12, 16]
    assert lines[0].startswith("4.000 ┤")
    assert lines[-1].startswith("    0 ┤")


def test_the_first_and_the_last_of_many_values_are_kept():
    shown = columns(chart([8.0, *[0.0] * 998, 4.0], width=10, height=1), 10)
    assert shown == [8, 0, 0, 0, 0, 0, 0, 0, 0, 4]


def test_what_is_not_finite_leaves_its_column_empty():
    assert columns(chart([1.0, math.nan, math.inf, 1.0], width=4, height=1), 4) == [8, 0, 0, 8]


def test_a_small_value_is_told_from_nothing():
    assert columns(chart([1000.0, 0.001, 0.0], width=3, height=1), 3) == [8, 1, 0]


def test_values_below_zero_lower_the_bottom():
    lines = chart([-1.0, 1.0], width=2, height=2)
    assert columns(lines, 2) == [0, 16]
    assert lines[-1].startswith("-1.000 ┤")


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=200))
def test_any_values_give_a_chart_of_its_size(values: list[float]):
    lines = chart(values, width=20, height=4)
    assert len(lines) == 4
    assert len({line.index("┤") for line in lines}) == 1
    assert all(len(line.partition("┤")[2]) <= 20 for line in lines)
