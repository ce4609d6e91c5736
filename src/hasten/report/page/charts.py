"""Charts and small pictures, as the places of their lines.

Lengths are percentages of the width of the page. Lines are drawn in a square that is stretched to it, with strokes that
are not. Colours are classes of the style sheet.

A long curve is cut into stretches of equally many values. Of each, the lowest and the highest value are drawn, so no
spike is lost. A value that is not finite is a gap.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from hasten.facts.plan import Speedup
from hasten.report.page.page_model import Chart, Curve, Picture, Shape

POINTS = 640  # of a curve: a wide page shows two in three pixels
_SIDE = 1000  # of the square that lines are drawn in
_FEW = 40  # points, up to which each gets a dot of its own

Points = Sequence[tuple[float, float]]  # step and value


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
class Line:
    """label: in the legend; empty for a further line of the same arm. kind: a class, which gives it a colour."""

    label: str
    kind: str
    points: Points


def thinned(points: Points) -> Points:
    """At most POINTS of them; a stretch with a value that is not finite becomes one such point."""
    if len(points) <= POINTS:
        return points
    stretch, kept = math.ceil(2 * len(points) / POINTS), list[tuple[float, float]]()
    for start in range(0, len(points), stretch):
        part = points[start : start + stretch]
        broken = [point for point in part if not math.isfinite(point[1])]
        ends = {min(part, key=_value), max(part, key=_value)}
        kept += broken[:1] or sorted(ends)
    return kept


def number(value: float) -> str:
    """A mark on an axis."""
    return f"{value:,.6g}"


def chart(title: str, lines: Sequence[Line], y_label: str) -> list[Chart]:
    """Lines over optimizer steps; empty where there is no value to draw. y_label: with its unit."""
    finite = [point for line in lines for point in line.points if math.isfinite(point[1])]
    if not finite:
        return []
    steps, values = zip(*finite, strict=True)
    marks = ticks(min(values), max(values))
    upright, level = Axis(low=marks[0], high=marks[-1]), Axis(low=min(steps), high=max(steps))
    drawn = Chart(
        title=title,
        summary=_summary(lines),
        y_label=y_label,
        y_marks=[(_percent(1 - upright.place(mark)), number(mark)) for mark in marks],
        x_marks=[*_marks_across(level)],
        curves=[_curve(line, upright, level) for line in lines],
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
            place = {"x": _percent(start), "width": _percent(width), "y": 0, "height": "100%"}
            shapes.append(("rect", {"class": kind, **place}))
        start += width
    return Picture(kind="bar", title=title, shapes=shapes)


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


def _curve(line: Line, upright: Axis, level: Axis) -> Curve:
    points, path, dots = thinned(line.points), list[str](), list[tuple[str, str]]()
    for is_finite, run in groupby(points, key=lambda point: math.isfinite(point[1])):
        if is_finite:
            places = [(level.place(step), 1 - upright.place(value)) for step, value in run]
            path.append(_path(places))
            if len(points) <= _FEW or len(places) == 1:
                dots += [(_percent(x), _percent(y)) for x, y in places]
    return Curve(label=line.label, kind=line.kind, line="".join(path), dots=dots)


def _summary(lines: Sequence[Line]) -> str:
    """Of each arm: the first and the last value, and the range of all."""
    said = list[str]()
    for named in (line for line in lines if line.label):
        arm = [[value for _, value in line.points if math.isfinite(value)] for line in lines if line.kind == named.kind]
        curves = [values for values in arm if values]
        if curves:
            first, last = _span([values[0] for values in curves]), _span([values[-1] for values in curves])
            whole = _span([value for values in curves for value in values])
            said.append(f"{named.label}: first {first}, last {last}, range {whole}.")
    return " ".join(said)


def _span(values: Collection[float]) -> str:
    low, high = f"{min(values):.4g}", f"{max(values):.4g}"
    return low if low == high else f"{low} to {high}"


def _value(point: tuple[float, float]) -> float:
    return point[1]


def _path(places: Iterable[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{x * _SIDE:.1f} {y * _SIDE:.1f}" for x, y in places)


def _marks_across(level: Axis) -> Iterator[tuple[str, str, str]]:
    marks = [mark for mark in ticks(level.low, level.high) if level.low <= mark <= level.high]
    for mark in marks or [level.low]:
        place = level.place(mark)
        side = "first" if place < 0.05 else "last" if place > 0.95 else "middle"
        yield _percent(place), f"{mark:,.6g}", side


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
