"""What a page shows, as plain records without any HTML. templates/report.html turns them into a page."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import compress

Shape = tuple[str, Mapping[str, str | float]]  # an SVG element's name and attributes; none of them from a file
Pair = tuple[str, "Cell | str"]
Column = tuple[str, str]  # name and class


@dataclass(frozen=True, kw_only=True, slots=True)
class Picture:
    """A small drawing inside a table. title: for readers who do not see it."""

    kind: str
    title: str
    shapes: Sequence[Shape]


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """text, and below it what explains it. kind: classes of the style sheet; swatch: a colour before the text."""

    text: str = ""
    small: str = ""
    kind: str = ""
    swatch: str = ""
    picture: Picture | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """The first column names the rows. kind: classes of the style sheet; "choices" becomes a list of cards on a small
    screen, "wide" scrolls sideways there."""

    caption: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell | str]]
    kind: str = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Curve:
    """A line in a chart; its path is in a square of 1,000, dots and marks are shares of the chart in per cent."""

    label: str  # empty for one that the legend does not name
    kind: str  # a class, which gives it a colour
    line: str
    dots: Sequence[tuple[str, str]]


@dataclass(frozen=True, kw_only=True, slots=True)
class Chart:
    """summary: for readers who do not see the curves. y_label: with its unit."""

    title: str
    summary: str
    y_label: str
    y_marks: Sequence[tuple[str, str]]  # place and text
    x_marks: Sequence[tuple[str, str, str]]  # place, text, and which side of the text is at the place
    curves: Sequence[Curve]


@dataclass(frozen=True, kw_only=True, slots=True)
class Section:
    """Its parts are shown in the order of the fields; empty ones are skipped."""

    title: str
    lead: str = ""
    notes: Sequence[str] = ()
    bars: Sequence[tuple[str, Picture, str]] = ()  # name, parts end to end, sum
    charts: Sequence[Chart] = ()
    table: Table | None = None
    pairs: Sequence[Pair] = ()


@dataclass(frozen=True, kw_only=True, slots=True)
class Page:
    """small_print: what the headline rests on. command: what to do next."""

    subject: str  # the job, or the file
    headline: str
    small_print: Sequence[str] = ()
    bars: Sequence[tuple[str, Picture, str]] = ()
    figures: Sequence[Pair] = ()
    notes: Sequence[str] = ()
    command: str
    sections: Sequence[Section] = field(default_factory=list[Section])


def filled_table(caption: str, columns: Sequence[Column], rows: Sequence[Sequence[Cell | str]], kind: str) -> Table:
    """A table without the columns in which every row is empty."""
    shown = [any(row[position] for row in rows) for position in range(len(columns))]
    return Table(
        caption=caption,
        columns=[*compress(columns, shown)],
        rows=[[*compress(row, shown)] for row in rows],
        kind=kind,
    )
