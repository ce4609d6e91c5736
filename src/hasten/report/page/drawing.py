"""Pictures as SVG inside the page.

Lengths are percentages of whatever width the page has, and lines are drawn in a square that is stretched to it, with
strokes that are not. So the words keep their size on a telephone and on a wide screen. Colours are classes of the
style sheet, which has them twice, for light and dark. Each picture says in a title what it shows; what the numbers are
stands in a table beside it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from hasten.facts.choice import Speedup
from hasten.report.page.markup import Markup, Part, element, joined
from hasten.report.page.thinning import Band, ticks

HEIGHT = 200  # of a drawn curve's field, in pixels
_SIDE = 1000  # of the square that lines are drawn in
_FEW = 40  # points, up to which each gets a dot of its own


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """A curve in a chart: what it is called, and its class, which gives it a colour."""

    label: str
    kind: str
    band: Band


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


def bar(parts: Iterable[tuple[str, float]], whole: float, title: str) -> Markup:
    """Parts laid end to end, as (class, length), as shares of the whole. A length that is no length is left out."""
    drawn, start = list[Part](), 0.0
    for kind, length in parts:
        width = length / whole if whole > 0 and 0 < length < math.inf else 0.0
        if width:
            drawn.append(element("rect", class_=kind, x=_percent(start), width=_percent(width), y=0, height="100%"))
        start += width
    return picture("bar", title, *drawn)


def span(kind: str, low: float, high: float, ends: tuple[float, float], axis: Axis, title: str) -> Markup:
    """A bar from one value to another, with whiskers around where it ends."""
    left, right = sorted((axis.place(low), axis.place(high)))
    return picture(
        "span",
        title,
        element("rect", class_=kind, x=_percent(left), width=_percent(right - left), y=4, height=14),
        *_whisker(axis.place(ends[0]), axis.place(ends[1])),
    )


def interval(speedup: Speedup, axis: Axis, kind: str, title: str) -> Markup:
    """A dot with its interval, beside the line where nothing changes."""
    if not all(map(math.isfinite, (speedup.low, speedup.ratio, speedup.high))):
        return joined([])
    one = _percent(axis.place(1.0))
    low, middle, high = (axis.place(value) for value in (speedup.low, speedup.ratio, speedup.high))
    return picture(
        f"interval {kind}",
        title,
        element("line", class_="one", x1=one, x2=one, y1=0, y2="100%"),
        *_whisker(low, high),
        element("circle", class_="dot", cx=_percent(middle), cy=11, r=4),
    )


def ratio_axis(speedups: Sequence[Speedup]) -> Axis:
    """Ratios on a logarithm, so that twice as fast lies as far from 1 as half as fast does."""
    ends = [end for each in speedups for end in (each.low, each.high) if math.isfinite(end)]
    return Axis(low=max(min(0.9, *ends, 0.9), 0.1), high=min(max(1.1, *ends, 1.1), 32.0), through=math.log)


def chart(
    lines: Sequence[Line], *, title: str, told: str, down: str, across: str, show: Callable[[float], str]
) -> Markup:
    """Curves over a common axis, with a band where a point stands for several values.

    down, across: what the axes are; show: a value of the upright axis in words; told: the picture's description.
    """
    values = [value for line in lines for value in (*line.band.lows, *line.band.highs) if math.isfinite(value)]
    places = [place for line in lines for place in line.band.at if math.isfinite(place)]
    if not values:
        return element("p", "There is no value to draw.", class_="quiet")
    marks = ticks(min(values), max(values))
    upright = Axis(low=marks[0], high=marks[-1])
    level = Axis(low=min(places), high=max(places)) if min(places) < max(places) else Axis(low=0, high=2 * places[0])
    drawn = [_drawn(line, upright, level) for line in lines]
    return element(
        "figure",
        element("figcaption", element("span", down, class_="axis"), _legend(lines) if len(lines) > 1 else None),
        element(
            "div",
            _labels_down(marks, upright, show),
            picture("field", title, *_grid(marks, upright), *drawn, desc=told, height=HEIGHT),
            element("span", class_="corner"),
            _labels_across(level),
            class_="plot",
        ),
        element("p", across, class_="axis across"),
        class_="chart",
    )


def picture(kind: str, title: str, *parts: Part, desc: str = "", **attributes: str | int | None) -> Markup:
    """A picture, with its title and description for whoever does not see it."""
    words = [element("title", title), element("desc", desc) if desc else None]
    return element("svg", *words, *parts, class_=kind, role="img", **attributes)


def swatch(kind: str) -> Markup:
    return element(
        "svg", element("rect", class_=kind, width="100%", height="100%"), class_="swatch", aria_hidden="true"
    )


def _legend(lines: Sequence[Line]) -> Markup:
    items = [element("li", swatch(line.kind), line.label) for line in lines]
    return element("ul", *items, class_="legend")


def _drawn(line: Line, upright: Axis, level: Axis) -> Markup:
    band = line.band
    area, path, dots = list[str](), list[str](), list[Part]()
    for run in _runs(band):
        places = [
            (level.place(band.at[i]), *(1 - upright.place(v[i]) for v in (band.means, band.lows, band.highs)))
            for i in run
        ]
        path.append(_path([(x, y) for x, y, _, _ in places]))
        around = [(x, high) for x, _, _, high in places] + [(x, low) for x, _, low, _ in reversed(places)]
        area.append(f"{_path(around)}Z")
        if len(band.at) <= _FEW or len(run) == 1:
            dots += [
                element("circle", class_=line.kind, cx=_percent(x), cy=_percent(y), r="2.5") for x, y, _, _ in places
            ]
    stretched = element(
        "svg",
        element("path", class_=f"band {line.kind}", d="".join(area)) if area and band.lows != band.highs else None,
        element("path", class_=f"line {line.kind}", d="".join(path)) if path else None,
        viewBox=f"0 0 {_SIDE} {_SIDE}",
        preserveAspectRatio="none",
        width="100%",
        height="100%",
    )
    return element("g", stretched, *dots)


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


def _grid(marks: Sequence[float], upright: Axis) -> Iterator[Markup]:
    for mark in marks:
        y = _percent(1 - upright.place(mark))
        yield element("line", class_="grid", x1=0, x2="100%", y1=y, y2=y)


def _labels_down(marks: Sequence[float], upright: Axis, show: Callable[[float], str]) -> Markup:
    labels = [element("text", show(mark), x="100%", y=_percent(1 - upright.place(mark)), dy="0.32em") for mark in marks]
    return element("svg", *labels, class_="labels down", aria_hidden="true", height=HEIGHT)


def _labels_across(level: Axis) -> Markup:
    marks = [mark for mark in ticks(level.low, level.high) if level.low <= mark <= level.high]
    drawn = list[Part]()
    for mark in marks or [level.low]:
        place = level.place(mark)
        side = "first" if place < 0.05 else "last" if place > 0.95 else "middle"
        drawn.append(element("text", f"{mark:,.6g}", class_=side, x=_percent(place), y="1em"))
    return element("svg", *drawn, class_="labels across", aria_hidden="true", height=20)


def _whisker(low: float, high: float) -> Iterator[Markup]:
    low, high = min(low, high), max(low, high)
    yield element("line", class_="whisker", x1=_percent(low), x2=_percent(high), y1=11, y2=11)
    for end in (low, high):
        yield element("line", class_="whisker", x1=_percent(end), x2=_percent(end), y1=7, y2=15)


def _percent(place: float) -> str:
    return f"{place * 100:.2f}%"
