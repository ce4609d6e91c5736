"""What every rule has, whatever it finds. A new one enrols itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.doctor import rules
from hasten.doctor.contract import HEADINGS
from hasten.doctor.rules import ALL
from hasten.techniques import ALL as TECHNIQUES

FILES = {path.stem for path in Path(rules.__file__).parent.glob("*.py")} - {"__init__"}


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_a_rule_has_every_heading_and_says_something_under_it(rule):
    assert tuple(rule.sections) == HEADINGS
    assert all(rule.sections.values())
    assert rule.headline.endswith((".", "step")) or "." not in rule.headline


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_a_rule_says_whether_its_fix_is_safe(rule):
    word = "Nothing" if rule.safety is None else rule.safety.value.capitalize()
    assert rule.sections["Safety"].startswith(word)


@pytest.mark.parametrize("rule", ALL, ids=lambda rule: rule.name)
def test_a_rule_names_a_technique_that_there_is(rule):
    assert rule.technique is None or rule.technique in {technique.name for technique in TECHNIQUES}


def test_every_file_of_a_rule_is_enrolled_under_its_own_name_and_code():
    assert {rule.name for rule in ALL} == FILES
    assert len({rule.code for rule in ALL}) == len(ALL)
    assert all(rule.check.__module__ == f"hasten.doctor.rules.{rule.name}" for rule in ALL)
