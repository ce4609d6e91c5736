"""Curves of any length, as few enough points to draw.

A curve that is longer than a picture is wide is cut into stretches of equally many steps. Each stretch becomes a point:
the mean of all that lies in it, and the lowest and the highest, so that no spike is lost. Nothing is smoothed across
stretches, and a stretch that holds a value that is not finite has no mean: it stays a gap, and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

POINTS = 320  # a wide page shows one in three pixels
_MOST = 1e100  # a difference of two such numbers still fits a double


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A mean and what lies around it, at points along an axis; NaN where a stretch holds a value that is not finite."""

    at: tuple[float, ...]
    means: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    stretch: int  # steps that one point stands for
    broken: int  # values that are not finite, or too large to draw


def band(curves: Sequence[Sequence[float]], at: Sequence[float] | None = None, points: int = POINTS) -> Band:
    """What several curves have in common, or a single one. Where one of them ends early, the others go on.

    at: where the values stand on the axis, as many as the longest curve has; None counts from 1.
    """
    length = max(map(len, curves), default=0)
    places = range(1, length + 1) if at is None else at
    stretch = max(1, math.ceil(length / points))
    at_, means, lows, highs, broken = list[float](), list[float](), list[float](), list[float](), 0
    for start in range(0, length, stretch):
        end = min(start + stretch, length)
        values = [value for curve in curves for value in curve[start:end]]
        wrong = sum(not abs(value) < _MOST for value in values)
        broken += wrong
        at_.append((places[start] + places[end - 1]) / 2)
        means.append(math.nan if wrong else math.fsum(values) / len(values))
        lows.append(math.nan if wrong else min(values))
        highs.append(math.nan if wrong else max(values))
    return Band(at=tuple(at_), means=tuple(means), lows=tuple(lows), highs=tuple(highs), stretch=stretch, broken=broken)


def ticks(low: float, high: float, most: int = 5) -> tuple[float, ...]:
    """Round numbers from low or below to high or above, two at least; where both are as good as one, around it."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) / 2 or 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / max(most - 1, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(position * step for position in range(first, max(last, first + 1) + 1))


def _round_step(step: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten, as large as the step or larger."""
    power = 10.0 ** math.floor(math.log10(step)) if step > 1e-300 else 1e-300
    return next(scale * power for scale in (1, 2, 2.5, 5, 10, 20) if scale * power >= step)
