"""Draws horizontal bars with their 95 % intervals as an SVG, which follows the light or dark of whoever reads it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

WIDTH, EDGE, LEFT, RIGHT = 800, 24, 286, 190  # pixels: of the picture, its edge, the names, the figures
ROW, THICKNESS, GROUP, TITLE, LINE = 32, 20, 38, 62, 19  # pixels: of a bar and its row, a group's name, lines of text
STYLE = """
text { font: 15px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.title { font-size: 18px; font-weight: 600 } .group { font-weight: 600 } .small { font-size: 13px; fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 } .other { fill: #afb8c1 } .ours { fill: #0f9488 }
.range { stroke: #1f2328; fill: none } .origin { stroke: #818b98 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .card { fill: #0d1117; stroke: #3d444d }
.other { fill: #656c76 } .ours { fill: #14857a } .range { stroke: #f0f6fc } .origin { stroke: #9198a1 } }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One arm: its value with its 95 % interval, and the text beside it.

    ours: it is hasten's, and is drawn in colour.
    """

    name: str
    value: float
    low: float
    high: float
    text: str
    ours: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """Bars from `origin` to their values.

    rows: from above; a text is the name of the group of bars below it.
    below: lines that say the baseline, the machine, and what the intervals are of.
    origin_name: what a bar of no length is; it stands above a line. Empty: no line.
    """

    title: str
    rows: Sequence[Bar | str]
    below: Sequence[str]
    origin: float = 0.0
    origin_name: str = ""

    def across(self, value: float) -> float:
        """Pixels from the left of the picture."""
        bars = [row for row in self.rows if isinstance(row, Bar)]
        least, most = min(self.origin, *(bar.low for bar in bars)), max(self.origin, *(bar.high for bar in bars))
        return LEFT + (value - least) / (most - least) * (WIDTH - LEFT - RIGHT)


def drawn(chart: Chart) -> str:
    top = TITLE + (LINE if chart.origin_name else 0)
    bottom = top + sum(ROW if isinstance(row, Bar) else GROUP for row in chart.rows)
    height = bottom + LINE * len(chart.below) + 22
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(chart.title)}">',
        f"<title>{escape(chart.title)}</title><style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        _text(EDGE, 38, chart.title, kind="title"),
        *_rows(chart, top),
        *(_origin(chart, top, bottom) if chart.origin_name else ()),
        *(_text(EDGE, bottom + 18 + LINE * number, line, kind="small") for number, line in enumerate(chart.below)),
    ]
    return "\n".join([*lines, "</svg>", ""])


def _rows(chart: Chart, top: float) -> Iterator[str]:
    for row in chart.rows:
        if isinstance(row, Bar):
            yield from _bar(chart, row, top)
            top += ROW
        else:
            yield _text(EDGE, top + GROUP - 12, row, kind="group")
            top += GROUP


def _bar(chart: Chart, bar: Bar, top: float) -> Iterator[str]:
    middle = top + ROW / 2
    begin, end = sorted((chart.across(chart.origin), chart.across(bar.value)))
    low, high = chart.across(bar.low), chart.across(bar.high)
    yield _text(EDGE, middle + 5, bar.name)
    yield (
        f'<rect class="{"ours" if bar.ours else "other"}" x="{begin:.1f}" y="{middle - THICKNESS / 2:g}" '
        f'width="{end - begin:.1f}" height="{THICKNESS}" rx="2"/>'
    )
    if bar.low < bar.high:
        caps = "".join(f"M{each:.1f} {middle - 4:g}V{middle + 4:g}" for each in (low, high))
        yield f'<path class="range" d="M{low:.1f} {middle:g}H{high:.1f}{caps}"/>'
    yield _text(max(end, high) + 10, middle + 5, bar.text)


def _origin(chart: Chart, top: float, bottom: float) -> Iterator[str]:
    x = chart.across(chart.origin)
    yield f'<path class="origin" d="M{x:.1f} {top:g}V{bottom:g}"/>'
    yield _text(x, top - 6, chart.origin_name, kind="small", anchor="middle")


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text x="{x:.4g}" y="{y:.4g}"{attributes}>{escape(text)}</text>'
