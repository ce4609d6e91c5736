"""Short pieces of code in which every place that is to be found is marked by `# finds CODE`."""

from __future__ import annotations

import re
import textwrap

from hasten.doctor.lint.linter import lint_text
from hasten.doctor.rules import ALL

MARK = re.compile(r"#.*\bfinds ((?:H\d+ ?)+)")


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
