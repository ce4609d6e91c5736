"""Draws horizontal bars with their 95 % intervals as an SVG, which follows the light or dark of whoever reads it.

In every chart a longer bar is better. A name stands above its bar, not beside it, so a picture is narrow enough for its
text to be read on a telephone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from textwrap import wrap

WIDTH, EDGE = 500, 20  # pixels: of the picture and its edge
ROW, THICKNESS, GROUP, TITLE, LINE = 42, 10, 36, 24, 19  # pixels: of a bar with its name, a group's name, lines of text
IN_A_TITLE, IN_A_LINE = 46, 62  # characters
STYLE = """
text { font: 16px system-ui, -apple-system, "Segoe UI", sans-serif; fill: #1f2328 }
.title { font-size: 18px; font-weight: 600 } .group { font-weight: 600 } .small { font-size: 14px; fill: #59636e }
.card { fill: #ffffff; stroke: #d1d9e0 } .other { fill: #afb8c1 } .ours { fill: #0f9488 }
.range, .mark { stroke: #1f2328; fill: none } .mark { stroke-width: 2 }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .small { fill: #9198a1 } .card { fill: #0d1117; stroke: #3d444d }
.other { fill: #656c76 } .ours { fill: #14857a } .range, .mark { stroke: #f0f6fc } }
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Bar:
    """One arm: its value with its 95 % interval, and the text at its right.

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
    """Bars from 0 to their values, of which a longer one is better.

    length: what the length of a bar is, and that longer is better.
    rows: from above; a text is the name of the group of bars below it.
    below: the baseline, the machine, and what the intervals are of.
    mark: a value that is marked beside every bar, as 1 where bars are ratios; None for none.
    """

    title: str
    length: str
    rows: Sequence[Bar | str]
    below: str
    mark: float | None = None

    def across(self, value: float) -> float:
        """Pixels from the left of the picture."""
        most = max(max(row.value, row.high) for row in self.rows if isinstance(row, Bar))
        return EDGE + value / most * (WIDTH - 2 * EDGE)


def drawn(chart: Chart) -> str:
    title, length, below = _lines(chart.title, IN_A_TITLE), _lines(chart.length), _lines(chart.below)
    second = 14 + TITLE * len(title)
    top = second + LINE * len(length) + 14
    bottom = top + sum(ROW if isinstance(row, Bar) else GROUP for row in chart.rows)
    height = bottom + LINE * len(below) + 22
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}" height="{height}" '
        f'role="img" aria-label="{escape(chart.title)}">',
        f"<title>{escape(chart.title)}</title><style>{STYLE}</style>",
        f'<rect class="card" x="0.5" y="0.5" width="{WIDTH - 1}" height="{height - 1}" rx="8"/>',
        *(_text(EDGE, 34 + TITLE * number, line, kind="title") for number, line in enumerate(title)),
        *(_text(EDGE, second + 20 + LINE * number, line, kind="small") for number, line in enumerate(length)),
        *_rows(chart, top),
        *(_text(EDGE, bottom + 20 + LINE * number, line, kind="small") for number, line in enumerate(below)),
    ]
    return "\n".join([*lines, "</svg>", ""])


def _lines(text: str, most: int = IN_A_LINE) -> list[str]:
    return wrap(text.replace(" %", "\u00a0%"), most)


def _rows(chart: Chart, top: float) -> Iterator[str]:
    for row in chart.rows:
        if isinstance(row, Bar):
            yield from _bar(chart, row, top)
            top += ROW
        else:
            yield _text(EDGE, top + GROUP - 12, row, kind="group")
            top += GROUP


def _bar(chart: Chart, bar: Bar, top: float) -> Iterator[str]:
    begin, end, low, high = map(chart.across, (0, bar.value, bar.low, bar.high))
    middle = top + ROW - 14
    yield _text(EDGE, top + 17, bar.name)
    yield _text(WIDTH - EDGE, top + 17, bar.text, kind="small", anchor="end")
    yield (
        f'<rect class="{"ours" if bar.ours else "other"}" x="{begin:.1f}" y="{middle - THICKNESS / 2:g}" '
        f'width="{end - begin:.1f}" height="{THICKNESS}" rx="2"/>'
    )
    if bar.low < bar.high:
        caps = "".join(f"M{each:.1f} {middle - 4:g}V{middle + 4:g}" for each in (low, high))
        yield f'<path class="range" d="M{low:.1f} {middle:g}H{high:.1f}{caps}"/>'
    if chart.mark is not None:
        yield f'<path class="mark" d="M{chart.across(chart.mark):.1f} {middle - 8:g}V{middle + 8:g}"/>'


def _text(x: float, y: float, text: str, *, kind: str = "", anchor: str = "start") -> str:
    attributes = (f' class="{kind}"' if kind else "") + (f' text-anchor="{anchor}"' if anchor != "start" else "")
    return f'<text x="{x:.4g}" y="{y:.4g}"{attributes}>{escape(text)}</text>'
