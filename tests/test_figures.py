"""A figure in the README or in a page of docs/ stands in the record that its line leads to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
PAGES = [REPOSITORY / "README.md", *sorted((REPOSITORY / "docs").glob("*.md"))]
GENERATED = ("commands.md", "records.md")

LINK = re.compile(r"\((?:\.\./)?(records/\d{4}[^)#\s]*)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
NO_FIGURE = re.compile(r"\]\([^)]*\)|(?:Python|torch|version|arXiv:|§) ?[\d.]+\d|\d+\.\d+\.\d+")
FIGURE = re.compile(r"(?<![\w.-])\d[\d,]*\.\d+(?![\w.]*\d)")
UNITS = (1.0, 1e2, 1e6)  # per cent of a share, microseconds


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and rows of tables, without code."""
    for paragraph in CODE.sub("", text).split("\n\n"):
        yield from re.split(r"\n(?=[|*] )", paragraph)


def figures(block: str) -> list[str]:
    return FIGURE.findall(NO_FIGURE.sub("", block))


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield float(value)


def stands_in(figure: str, recorded: list[float]) -> bool:
    """Rounded as it is written, in one of the units that figures are told in, or as the inverse."""
    places, wanted = len(figure.partition(".")[2]), float(figure.replace(",", ""))
    found = [abs(each) * unit for each in recorded for unit in UNITS]
    found += [1 / abs(each) for each in recorded if each]  # times as slow, of times as fast
    return any(abs(each - wanted) <= 0.5000001 * 10**-places for each in found)


def recorded_in(places: list[str]) -> list[float]:
    """All numbers of the records: of their results, and of what their pages say."""
    found: list[float] = []
    for place in places:
        home = REPOSITORY / place
        found += numbers(json.loads((home / "result.json").read_text(encoding="utf-8")))
        found += map(float, re.findall(r"\d+\.\d+", (home / "README.md").read_text(encoding="utf-8")))
    return found


CASES = [
    pytest.param(block, id=f"{page.name}-{number}")
    for page in PAGES
    if page.name not in GENERATED
    for number, block in enumerate(blocks(page.read_text(encoding="utf-8")))
    if LINK.search(block) and figures(block)
]


@pytest.mark.parametrize("block", CASES)
def test_a_quoted_figure_stands_in_its_record(block):
    recorded = recorded_in(LINK.findall(block))
    assert [figure for figure in figures(block) if not stands_in(figure, recorded)] == []


def test_no_figure_of_the_readme_is_without_a_record():
    text = (REPOSITORY / "README.md").read_text(encoding="utf-8")
    assert [block for block in blocks(text) if figures(block) and not LINK.search(block)] == []


def test_a_figure_that_stands_in_no_record_is_found():
    assert figures("| [2.58 (2.35–2.72)](records/2026-11-21_x) | torch 2.13, 0.9961 |") == [
        "2.58",
        "2.35",
        "2.72",
        "0.9961",
    ]
    assert stands_in("2.58", [2.5812])
    assert stands_in("11.8", [1.18e-05])
    assert not stands_in("2.58", [2.57, 0.2])
