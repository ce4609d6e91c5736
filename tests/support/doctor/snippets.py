"""Short pieces of code in which every place that is to be found is marked by `# finds CODE`."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection
from dataclasses import replace
from functools import cache
from pathlib import Path

from hasten.doctor.lint.linter import lint_source
from hasten.doctor.lint.source_files import Source, read
from hasten.doctor.rule import SourceRule
from hasten.doctor.rules import ALL
from hasten.facts.finding import Finding

MARK = re.compile(r"#.*\bfinds ((?:H\d+ ?)+)")


def lint_text(text: str, path: str, rules: Collection[SourceRule] = ALL) -> list[Finding]:
    """path: its name in findings. Raises Unreadable."""
    return lint_source(Source(path, text), rules)


def marked(text: str) -> set[tuple[int, str]]:
    """Line and code of every mark."""
    lines = enumerate(text.splitlines(), start=1)
    return {(number, code) for number, line in lines if (mark := MARK.search(line)) for code in mark.group(1).split()}


def assert_finds_what_is_marked(text: str, *codes: str) -> None:
    """By the rules of these codes, and nothing else."""
    text = textwrap.dedent(text)
    rules = [rule for rule in ALL if rule.code in codes]
    assert len(rules) == len(codes)
    assert {(each.line, each.code) for each in lint_text(text, "snippet.py", rules)} == marked(text)


CORPUS = sorted(
    path for path in (Path(__file__).parents[2] / "doctor" / "corpus").iterdir() if path.suffix in {".py", ".ipynb"}
)
"""Training scripts in different styles, marked by hand before the rules were measured on them."""


@cache
def findings_in(path: Path) -> list[Finding]:
    """Of all rules in a script of the corpus, read once for all tests. Lines of a notebook are of its joined cells."""
    return lint_source(replace(read(path), cells=()))
