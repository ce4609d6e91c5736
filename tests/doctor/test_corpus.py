"""Training scripts in different styles, in which every place that is to be found is marked by `# finds CODE`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from hasten.doctor.lint import lint_text
from hasten.doctor.rules import ALL

CORPUS = sorted((Path(__file__).parent / "corpus").glob("*.py"))
MARK = re.compile(r"#.*\bfinds ((?:H\d+ ?)+)")


def marked(text: str) -> set[tuple[int, str]]:
    lines = enumerate(text.splitlines(), start=1)
    return {(number, code) for number, line in lines if (mark := MARK.search(line)) for code in mark.group(1).split()}


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_what_is_marked_is_found_and_nothing_else(path):
    text = path.read_text()
    assert {(each.line, each.code) for each in lint_text(text, path.name)} == marked(text)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_every_rule_has_a_place_in_the_corpus(rule):
    assert any(code == rule.code for path in CORPUS for _, code in marked(path.read_text()))
