"""Training scripts in different styles, in which every place that is to be found is marked by `# finds CODE`.

They were written and marked by hand before the rules were measured on them.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from hasten.doctor.lint.linter import lint_source
from hasten.doctor.lint.source_files import read
from hasten.doctor.rules import ALL
from support.doctor.snippets import marked

CORPUS = sorted(path for path in (Path(__file__).parents[1] / "corpus").iterdir() if path.suffix in {".py", ".ipynb"})


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_is_marked_is_found_and_nothing_else(path):
    source = replace(read(path), cells=())
    assert {(each.line, each.code) for each in lint_source(source)} == marked(source.text)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_every_rule_has_several_places_in_the_corpus(rule):
    places = Counter(code for path in CORPUS for _, code in marked(read(path).text))
    assert places[rule.code] >= 5


def test_the_corpus_is_large():
    assert len(CORPUS) >= 40
