"""Training scripts in different styles, in which every place that is to be found is marked by `# finds CODE`."""

from __future__ import annotations

from collections import Counter

import pytest

from hasten.doctor.lint.source_files import read
from hasten.doctor.rules import ALL
from support.doctor.snippets import CORPUS, findings_in, marked


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.name)
def test_what_is_marked_is_found_and_nothing_else(path):
    assert {(each.line, each.code) for each in findings_in(path)} == marked(read(path).text)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_every_rule_has_several_places_in_the_corpus(rule):
    places = Counter(code for path in CORPUS for _, code in marked(read(path).text))
    assert places[rule.code] >= 5


def test_the_corpus_is_large():
    assert len(CORPUS) >= 40
