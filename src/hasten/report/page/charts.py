"""Charts and small pictures, as the places of their lines.

Lengths are percentages of whatever width the page has. Lines are drawn in a square that is stretched to it, with
strokes that are not, so text keeps its size on a telephone and on a wide screen. Colours are classes of the style
sheet. The numbers of every picture are also in a table.

A curve with more points than a picture has room for is cut into stretches of equally many steps. Each stretch becomes a
point: its mean, with its lowest and highest value, so no spike is lost. A stretch with a value that is not finite has
no mean: it stays a gap, and is counted.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hasten.facts.choice import Speedup
from hasten.report.page.page_model import Chart, Curve, Picture, Shape

POINTS = 320  # of a curve: a wide page shows one in three pixels
_SIDE = 1000  # of the square that lines are drawn in
_FEW = 40  # points, up to which each gets a dot of its own
_MOST = 1e100  # a difference of two such numbers still fits a double


@dataclass(frozen=True, kw_only=True, slots=True)
class Axis:
    """From where to where; values beyond an end are drawn at it."""

    low: float
    high: float
    through: Callable[[float], float] = field(default=float)

    def place(self, value: float) -> float:
        """0 to 1."""
        low, high, here = map(self.through, (self.low, self.high, min(max(value, self.low), self.high)))
        return (here - low) / (high - low) if high > low else 0.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Band:
    """A mean and what lies around it, at points along an axis; NaN where a stretch holds a value that is not finite."""

    label: str
    kind: str
    at: tuple[float, ...]
    means: tuple[float, ...]
    lows: tuple[float, ...]
    highs: tuple[float, ...]
    stretch: int  # steps that one point stands for
    broken: int  # values that are not finite, or too large to draw


def band(
    label: str, kind: str, curves: Sequence[Sequence[float]], at: Sequence[float] | None = None, points: int = POINTS
) -> Band:
    """What several curves have in common, or a single one. Where one of them ends early, the others continue.

    kind: a class of the style sheet. at: where the values stand on the axis, as many as the longest curve has; None
    counts from 1.
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
    series = [tuple(each) for each in (at_, means, lows, highs)]
    at_, means, lows, highs = series
    return Band(label=label, kind=kind, at=at_, means=means, lows=lows, highs=highs, stretch=stretch, broken=broken)


def chart(
    bands: Sequence[Band], *, title: str, description: str, y_label: str, x_label: str, show: Callable[[float], str]
) -> Chart | None:
    """Curves over a common axis. show: a value of the y axis as text. None where there is no value to draw."""
    values = [value for each in bands for value in (*each.lows, *each.highs) if math.isfinite(value)]
    places = [place for each in bands for place in each.at if math.isfinite(place)]
    if not values:
        return None
    marks = ticks(min(values), max(values))
    upright = Axis(low=marks[0], high=marks[-1])
    level = Axis(low=min(places), high=max(places)) if min(places) < max(places) else Axis(low=0, high=2 * places[0])
    return Chart(
        title=title,
        description=description,
        y_label=y_label,
        x_label=x_label,
        y_marks=[(_percent(1 - upright.place(mark)), show(mark)) for mark in marks],
        x_marks=[*_marks_across(level)],
        curves=[_curve(each, upright, level) for each in bands],
    )


def number(value: float) -> str:
    """A mark on an axis."""
    return f"{value:.6g}"


def ticks(low: float, high: float, most: int = 5) -> tuple[float, ...]:
    """Round numbers from low or below to high or above, two at least; around a single value."""
    if high - low <= 1e-9 * max(abs(low), abs(high)):
        margin = abs(low) / 2 or 1.0
        low, high = low - margin, high + margin
    step = _round_step((high - low) / max(most - 1, 1))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return tuple(position * step for position in range(first, max(last, first + 1) + 1))


def bar(parts: Iterable[tuple[str, float]], whole: float, title: str) -> Picture:
    """Parts end to end, as (class, length), as shares of the whole. A length that cannot be drawn is skipped."""
    shapes, start = list[Shape](), 0.0
    for kind, length in parts:
        width = length / whole if whole > 0 and 0 < length < math.inf else 0.0
        if width:
            shapes.append(_rectangle(kind, start, width, 0, "100%"))
        start += width
    return Picture(kind="bar", title=title, shapes=shapes)


def span(kind: str, low: float, high: float, ends: tuple[float, float], axis: Axis, title: str) -> Picture:
    """A bar from one value to another, with whiskers around its end."""
    left, right = sorted((axis.place(low), axis.place(high)))
    shapes = [_rectangle(kind, left, right - left, 4, "14"), *_whisker(axis.place(ends[0]), axis.place(ends[1]))]
    return Picture(kind="span", title=title, shapes=shapes)


def interval_picture(speedup: Speedup, axis: Axis, kind: str, title: str) -> Picture | None:
    """A dot with its interval, beside the line where nothing changes."""
    if not all(map(math.isfinite, (speedup.low, speedup.ratio, speedup.high))):
        return None
    one, low, middle, high = map(axis.place, (1.0, speedup.low, speedup.ratio, speedup.high))
    shapes: list[Shape] = [
        ("line", {"class": "one", "x1": _percent(one), "x2": _percent(one), "y1": 0, "y2": "100%"}),
        *_whisker(low, high),
        ("circle", {"class": "dot", "cx": _percent(middle), "cy": 11, "r": 4}),
    ]
    return Picture(kind=f"interval {kind}", title=title, shapes=shapes)


def ratio_axis(speedups: Iterable[Speedup | None]) -> Axis:
    """Ratios on a logarithm, so that twice as fast lies as far from 1 as half as fast."""
    found = [end for each in speedups if each is not None for end in (each.low, each.high) if math.isfinite(end)]
    return Axis(low=max(min(0.9, *found, 0.9), 0.1), high=min(max(1.1, *found, 1.1), 32.0), through=math.log)


def _curve(band: Band, upright: Axis, level: Axis) -> Curve:
    area, path, dots = list[str](), list[str](), list[tuple[str, str]]()
    for run in _runs(band):
        xs = [level.place(band.at[i]) for i in run]
        means, lows, highs = ([1 - upright.place(v[i]) for i in run] for v in (band.means, band.lows, band.highs))
        path.append(_path(zip(xs, means, strict=True)))
        area.append(_path([*zip(xs, highs, strict=True), *zip(reversed(xs), reversed(lows), strict=True)]) + "Z")
        if len(band.at) <= _FEW or len(run) == 1:
            dots += [(_percent(x), _percent(y)) for x, y in zip(xs, means, strict=True)]
    wide = "".join(area) if band.lows != band.highs else ""
    return Curve(label=band.label, kind=band.kind, line="".join(path), band=wide, dots=dots)


def _runs(band: Band) -> Iterator[list[int]]:
    """The positions between gaps."""
    run = list[int]()
    for position, mean in enumerate(band.means):
        if math.isfinite(mean):
            run.append(position)
        elif run:
            yield run
            run = []
    if run:
        yield run


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
    low, high = min(low, high), max(low, high)
    yield "line", {"class": "whisker", "x1": _percent(low), "x2": _percent(high), "y1": 11, "y2": 11}
    for end in (low, high):
        yield "line", {"class": "whisker", "x1": _percent(end), "x2": _percent(end), "y1": 7, "y2": 15}


def _percent(place: float) -> str:
    return f"{place * 100:.2f}%"


def _round_step(step: float) -> float:
    """1, 2, 2.5 or 5 times a power of ten, as large as the step or larger."""
    power = 10.0 ** math.floor(math.log10(step)) if step > 1e-300 else 1e-300
    return next(scale * power for scale in (1, 2, 2.5, 5, 10, 20) if scale * power >= step)
