"""Charts and small pictures, as the places of their lines.

Lengths are percentages of the width of the page. Lines are drawn in a square that is stretched to it, with strokes that
are not. Colours are classes of the style sheet. The numbers of every picture are also in a table.

A long curve is cut into stretches of equally many steps. Each becomes a point: its mean, with its lowest and highest
value, so no spike is lost. A stretch with a value that is not finite is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from hasten.facts.choice import Speedup
from hasten.report.page.page_model import Chart, Curve, Picture, Shape

POINTS = 320  # of a curve: a wide page shows one in three pixels
_SIDE = 1000  # of the square that lines are drawn in
_FEW = 40  # points, up to which each gets a dot of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """From where to where; values beyond an end are drawn at it."""

    low: float
    high: float
    through: Callable[[float], float] = float

    def place(self, value: float) -> float:
        """0 to 1."""
        low, high, here = map(self.through, (self.low, self.high, min(max(value, self.low), self.high)))
        return (here - low) / (high - low) if high > low else 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A mean and what lies around it, at points along an axis; NaN where a stretch holds a value that is not finite."""

    label: str
    kind: str
    at: Sequence[float]
    means: Sequence[float]
    lows: Sequence[float]
    highs: Sequence[float]
    stretch: int  # steps that one point stands for
    broken: int  # values that are not finite


def band(label: str, kind: str, curves: Sequence[Sequence[float]], at: Sequence[float] | None = None) -> Band:
    """What several curves have in common, or a single one. Where one of them ends early, the others continue.

    kind: a class of the style sheet. at: where the values stand on the axis, as many as the longest curve has; None
    counts from 1.
    """
    length = max(map(len, curves), default=0)
    places = range(1, length + 1) if at is None else at
    stretch = max(1, math.ceil(length / POINTS))
    middles, means, lows, highs, broken = list[float](), list[float](), list[float](), list[float](), 0
    for start in range(0, length, stretch):
        end = min(start + stretch, length)
        values = [value for curve in curves for value in curve[start:end]]
        wrong = sum(not math.isfinite(value) for value in values)
        broken += wrong
        middles.append((places[start] + places[end - 1]) / 2)
        means.append(math.nan if wrong else math.fsum(values) / len(values))
        lows.append(math.nan if wrong else min(values))
        highs.append(math.nan if wrong else max(values))
    return Band(label=label, kind=kind, at=middles, means=means, lows=lows, highs=highs, stretch=stretch, broken=broken)


def number(value: float) -> str:
    """A mark on an axis."""
    return f"{value:.6g}"


def chart(
    bands: Sequence[Band],
    *,
    title: str,
    description: str,
    y_label: str,
    x_label: str,
    show: Callable[[float], str] = number,
) -> list[Chart]:
    """Curves over a common axis; empty where there is no value to draw. show: a value of the y axis as text."""
    values = [value for each in bands for value in (*each.lows, *each.highs) if math.isfinite(value)]
    if not values:
        return []
    marks = ticks(min(values), max(values))
    upright = Axis(low=marks[0], high=marks[-1])
    first, last = min(each.at[0] for each in bands if each.at), max(each.at[-1] for each in bands if each.at)
    level = Axis(low=first, high=last) if first < last else Axis(low=0, high=2 * first)
    drawn = Chart(
        title=title,
        description=description,
        y_label=y_label,
        x_label=x_label,
        y_marks=[(_percent(1 - upright.place(mark)), show(mark)) for mark in marks],
        x_marks=[*_marks_across(level)],
        curves=[_curve(each, upright, level) for each in bands],
    )
    return [drawn]


def ticks(low: float, high: float) -> list[float]:
    """Some five round numbers from low or below to high or above; around a single value."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) / 2 or 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / 4)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [position * step for position in range(first, max(last, first + 1) + 1)]


def bar(parts: Iterable[tuple[str, float]], whole: float, title: str) -> Picture:
    """Parts end to end, as (class, length), as shares of the whole."""
    shapes, start = list[Shape](), 0.0
    for kind, length in parts:
        width = length / whole if whole else 0.0
        if width:
            shapes.append(_rectangle(kind, start, width, 0, "100%"))
        start += width
    return Picture(kind="bar", title=title, shapes=shapes)


def span(kind: str, low: float, high: float, ends: tuple[float, float], axis: Axis, title: str) -> Picture:
    """A bar from one value to another, with whiskers around its end."""
    left, right = sorted((axis.place(low), axis.place(high)))
    shapes = [_rectangle(kind, left, right - left, 4, "14"), *_whisker(axis.place(ends[0]), axis.place(ends[1]))]
    return Picture(kind="span", title=title, shapes=shapes)


def interval_picture(speedup: Speedup, axis: Axis, kind: str, title: str) -> Picture:
    """A dot with its interval, beside the line where nothing changes."""
    one, low, middle, high = map(axis.place, (1.0, speedup.low, speedup.ratio, speedup.high))
    shapes: list[Shape] = [
        ("line", {"class": "one", "x1": _percent(one), "x2": _percent(one), "y1": 0, "y2": "100%"}),
        *_whisker(low, high),
        ("circle", {"class": "dot", "cx": _percent(middle), "cy": 11, "r": 4}),
    ]
    return Picture(kind=f"interval {kind}", title=title, shapes=shapes)


def ratio_axis(speedups: Iterable[Speedup | None]) -> Axis:
    """Ratios on a logarithm, so that twice as fast lies as far from 1 as half as fast."""
    found = [end for each in speedups if each is not None for end in (each.low, each.high)]
    return Axis(low=max(min(0.9, *found, 0.9), 0.1), high=min(max(1.1, *found, 1.1), 32.0), through=math.log)


def _curve(band: Band, upright: Axis, level: Axis) -> Curve:
    area, path, dots = list[str](), list[str](), list[tuple[str, str]]()
    for is_finite, positions in groupby(range(len(band.at)), key=lambda position: math.isfinite(band.means[position])):
        if is_finite:
            run = [*positions]
            xs = [level.place(band.at[i]) for i in run]
            means, lows, highs = ([1 - upright.place(v[i]) for i in run] for v in (band.means, band.lows, band.highs))
            path.append(_path(zip(xs, means, strict=True)))
            area.append(_path([*zip(xs, highs, strict=True), *zip(reversed(xs), reversed(lows), strict=True)]) + "Z")
            if len(band.at) <= _FEW or len(run) == 1:
                dots += [(_percent(x), _percent(y)) for x, y in zip(xs, means, strict=True)]
    wide = "".join(area) if band.lows != band.highs else ""
    return Curve(label=band.label, kind=band.kind, line="".join(path), band=wide, dots=dots)


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x * _SIDE:.1f} {y * _SIDE:.1f}" for x, y in places)


def _marks_across(level: Axis) -> Iterator[tuple[str, str, str]]:
    marks = [mark for mark in ticks(level.low, level.high) if level.low <= mark <= level.high]
    for mark in marks or [level.low]:
        place = level.place(mark)
        side = "first" if place < 0.05 else "last" if place > 0.95 else "middle"
        yield _percent(place), f"{mark:,.6g}", side


def _rectangle(kind: str, x: float, width: float, y: float, height: str) -> Shape:
    return "rect", {"class": kind, "x": _percent(x), "width": _percent(width), "y": y, "height": height}


def _whisker(low: float, high: float) -> Iterator[Shape]:
    yield "line", {"class": "whisker", "x1": _percent(low), "x2": _percent(high), "y1": 11, "y2": 11}
    for end in (low, high):
        yield "line", {"class": "whisker", "x1": _percent(end), "x2": _percent(end), "y1": 7, "y2": 15}


def _percent(place: float) -> str:
    return f"{place * 100:.2f}%"


def _round_step(step: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten, as large as the step or larger."""
    power = 10.0 ** math.floor(math.log10(step))
    return next(scale * power for scale in (1, 2, 2.5, 5, 10, 20) if scale * power >= step)
