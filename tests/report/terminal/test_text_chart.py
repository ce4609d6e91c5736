"""Curves in a terminal."""

from __future__ import annotations

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


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), min_size=1, max_size=200))
def test_any_values_give_a_chart_of_its_size(values: list[float]):
    lines = chart(values, width=20, height=4)
    assert len(lines) == 4
    assert len({line.index("┤") for line in lines}) == 1
    assert all(len(line.partition("┤")[2]) <= 20 for line in lines)
