"""A figure in a README or in a page of docs/ stands in the record that its line leads to."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent
READMES = [REPOSITORY / "README.md", REPOSITORY / "README.zh-CN.md"]
PAGES = [*READMES, *sorted((REPOSITORY / "docs").rglob("*.md"))]
GENERATED = ("commands.md", "messages.md", "records.md")

LINK = re.compile(r"\((?:\.\./)*(records/[^)#\s]*/[^)#\s]*)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
NO_FIGURE = re.compile(r"\]\([^)]*\)|(?:Python|torch|version|arXiv:|§) ?[\d.]+\d|\d+\.\d+\.\d+")
FIGURE = re.compile(r"(?<![\w.-])\d[\d,]*(?:\.\d+(?![\w.]*\d)|(?= (?:s|ms|MiB|GiB|\w+ a second)\b))")
NUMBER = re.compile(r"(?<![\w.])-?\d[\d,]*(?:\.\d+)?(?![\w.]*\d)")


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, items of lists and rows of tables, without code."""
    for paragraph in CODE.sub("", text).split("\n\n"):
        yield from re.split(r"\n(?=[|*] )", paragraph)


def figures(block: str) -> list[str]:
    """With a fraction, or whole ones of seconds and of memory; other whole numbers say what was set."""
    return FIGURE.findall(NO_FIGURE.sub("", block))


def numbers(value: Any) -> Iterator[float]:
    if isinstance(value, dict):
        value = [*value.values()]
    if isinstance(value, list):
        for each in value:
            yield from numbers(each)
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        yield float(value)


def on_page(page: str, *, whole: bool) -> Iterator[float]:
    """What it says, in the units that it says it in, but for versions. whole: whole numbers as well."""
    for figure in NUMBER.findall(NO_FIGURE.sub("", page)):
        if whole or "." in figure:
            yield abs(float(figure.replace(",", "")))


def in_result(result: dict[str, Any]) -> Iterator[float]:
    """Targets, quoted figures of an earlier run, and how many times as fast the arms are. All else would be curves and
    samples, of which there are so many that a figure that is wrong would stand there as well."""
    yield from map(abs, numbers([result.get("targets", []), result.get("quoted", {})]))
    for comparison in result.get("comparisons", []):
        yield from (comparison["speedup"][each] for each in ("ratio", "low", "high"))


def as_times_slower(result: dict[str, Any]) -> Iterator[float]:
    """Inverses: a record says how many times as fast an arm is, and a page may say how many times its seconds are."""
    for comparison in result.get("comparisons", []):
        yield from (1 / comparison["speedup"][each] for each in ("ratio", "low", "high"))


def stands_in(figure: str, recorded: list[float]) -> bool:
    """Rounded as it is written."""
    places, wanted = len(figure.partition(".")[2]), float(figure.replace(",", ""))
    return any(abs(each - wanted) <= 0.5000001 * 10**-places for each in recorded)


def recorded_for(block: str, homes: list[Path], *, whole: bool = False) -> list[float]:
    """homes: of the records that the block leads to, of which the latest run counts. whole: for a figure without a
    fraction."""
    found: list[float] = []
    for home in homes:
        found += on_page((home / "README.md").read_text(encoding="utf-8"), whole=whole)
        result = json.loads((home / "result.json").read_text(encoding="utf-8"))
        found += in_result(result)
        if "times those of" in block:
            found += as_times_slower(result)
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
    homes = [REPOSITORY / place for place in LINK.findall(block)]
    recorded = {whole: recorded_for(block, homes, whole=whole) for whole in (False, True)}
    assert [figure for figure in figures(block) if not stands_in(figure, recorded["." not in figure])] == []


@pytest.mark.parametrize("page", READMES, ids=attrgetter("name"))
def test_no_figure_of_a_readme_is_without_a_record(page):
    text = page.read_text(encoding="utf-8")
    assert [block for block in blocks(text) if figures(block) and not LINK.search(block)] == []


def test_a_figure_that_stands_in_no_record_is_found():
    told = "| [2.58 (2.35–2.72)](records/digits/cpu) | torch 2.13, 0.9961 | 244 s, 12 pairs, 391,806 tokens a second |"
    assert figures(told) == ["2.58", "2.35", "2.72", "0.9961", "244", "391,806"]
    assert stands_in("244", [243.6])
    assert not stands_in("244", [244.6])
    assert stands_in("2.58", [2.5812])
    assert not stands_in("2.58", [2.57, 0.2])


def test_a_figure_that_is_only_in_a_curve_or_a_sample_is_not_accepted(tmp_path):
    (tmp_path / "README.md").write_text("torch 2.13.0, numpy 2.4.6\n| plan | 1.52× (1.40–1.61) | -5.3 (-8.4 to +1.1) |")
    result = {
        "targets": [{"name": "plan", "bound": 1.1, "low": 1.403, "value": 1.517, "high": 1.611, "outcome": "met"}],
        "comparisons": [
            {
                "arm": "plan",
                "speedup": {"ratio": 0.3941, "low": 0.371, "high": 0.4796, "pairs": 12},
                "extra_seconds_per_step": {"seconds": 7.7e-06},
                "one_off": {"build_seconds": 9.81},
            }
        ],
        "wholes": {"plan": [{"seconds": 60.98, "curve": [[10.74, 0.97], [13.54, 0.25]]}]},
        "shares_of_waiting": {"plan": [0.0473]},
    }
    (tmp_path / "result.json").write_text(json.dumps(result))
    recorded = recorded_for("", [tmp_path])
    told = ["1.52", "1.517", "5.3", "8.4", "0.394"]
    assert [figure for figure in told if not stands_in(figure, recorded)] == []
    untold = ["10.74", "10.7", "0.97", "4.0", "60.98", "4.73", "0.0473", "7.7", "9.81", "2.13", "0.66", "151.7", "2.54"]
    assert [figure for figure in untold if stands_in(figure, recorded)] == []
    assert stands_in("2.54", recorded_for("2.54 times those of the other", [tmp_path]))
