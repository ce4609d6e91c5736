"""What every rule has, whatever it finds. A new one enrols itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from hasten.doctor import model_rules, rules, run_rules
from hasten.doctor.registry import EVERY
from hasten.doctor.rule import HEADINGS
from hasten.techniques import ALL as TECHNIQUES

NOT_RULES = {"__init__", "step_costs"}


def sections(rule) -> dict[str, str]:
    """The paragraphs of its manual by heading."""
    parts = (part.partition(": ") for part in rule.manual.split("\n\n"))
    return {heading: body for heading, _, body in parts if heading in HEADINGS}


def test_a_rule_has_every_heading_and_says_something_under_it():
    for rule in EVERY:
        assert tuple(sections(rule)) == HEADINGS, rule.name
        assert all(sections(rule).values()), rule.name
        assert rule.headline, rule.name


def test_a_rule_says_whether_its_fix_is_safe():
    for rule in EVERY:
        word = "None" if rule.safety is None else rule.safety.value.capitalize()
        assert sections(rule)["Automatic fix"].startswith(word), rule.name


def test_a_rule_names_a_technique_that_there_is():
    assert {rule.technique for rule in EVERY} - {technique.name for technique in TECHNIQUES} == {None}


@pytest.mark.parametrize("room", [rules, model_rules, run_rules], ids=lambda room: room.__name__)
def test_every_file_of_a_rule_is_enrolled_under_its_own_name(room):
    files = {path.stem for path in Path(room.__file__).parent.glob("*.py")} - NOT_RULES
    assert {rule.name for rule in room.ALL} == files
    assert all(rule.check.__module__ == f"{room.__name__}.{rule.name}" for rule in room.ALL)


def test_no_two_rules_have_the_same_code_or_name():
    assert len({rule.code for rule in EVERY}) == len({rule.name for rule in EVERY}) == len(EVERY)
