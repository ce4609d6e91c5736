"""A curve in a terminal: columns of block characters, which have eight steps each."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hasten.report.display import decimal

_BLOCKS = " ▁▂▃▄▅▆▇█"


def chart(values: Sequence[float], *, width: int = 60, height: int = 8) -> list[str]:
    """Lines of text, the highest first, with the largest and smallest value as labels on the left.

    values: at least one, evenly spaced; more than `width` are thinned out evenly, the first and the last are kept. One
        that is not finite leaves its column empty. The lowest row starts at zero, unless a value is below zero.
    """
    last = (len(values) - 1) / (width - 1)
    shown = [values[round(column * last)] for column in range(width)]
    finite = [value for value in shown if math.isfinite(value)]
    low, high = min(0.0, *finite, 0.0), max(0.0, *finite, 0.0)
    eighths = [_eighths(value, low, high, height * 8) for value in shown]
    labels = {0: decimal(high), height - 1: decimal(low)}
    margin = max(len(label) for label in labels.values())
    lines: list[str] = []
    for row in range(height):
        below = (height - 1 - row) * 8
        blocks = "".join(_BLOCKS[min(max(filled - below, 0), 8)] for filled in eighths)
        lines.append(f"{labels.get(row, ''):>{margin}} ┤{blocks}".rstrip())
    return lines


def _eighths(value: float, low: float, high: float, steps: int) -> int:
    """How much of a column is filled; anything above the bottom shows at least its first step."""
    if not math.isfinite(value) or value <= low:
        return 0
    return max(1, round((value - low) / (high - low) * steps))
