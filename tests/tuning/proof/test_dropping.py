"""Which of several choices have to go, found with few proofs. What fails is planted: sets that fail when all there."""

from __future__ import annotations

import re

import pytest

from hasten.facts.choice import Choice
from hasten.tuning.proof.answers import Answer, sort_out

A, B, C, D = (Choice(technique=name, value=True) for name in "abcd")
EXACT = Choice(technique="exact", value=True)
WHOLE = (EXACT, A, B, C, D)


def sorted_out(*failing: str, is_plans: bool = True) -> tuple[list[tuple[str, str]], list[str]]:
    """Who goes and beside whom, and what was asked, in order: a proof fails where all of one set are there."""
    asked = list[str]()

    def proof(choices: tuple[Choice, ...]) -> Answer:
        assert EXACT in choices
        names = "".join(choice.technique for choice in choices if choice is not EXACT)
        asked.append(names)
        passes = not any(set(each) <= set(names) for each in failing)
        return Answer(passes=passes, reason=names, is_plans=is_plans)

    proofs, _ = sort_out(proof, WHOLE, WHOLE[1:])
    beside = {each.choice.technique: re.findall(r"(\w) = true", each.reason) for each in proofs if not each.passes}
    return [(name, "".join(others)) for name, others in beside.items()], asked


def test_what_passes_together_is_asked_once():
    assert sorted_out() == ([], ["abcd"])


def test_without_the_one_that_is_to_blame_the_rest_passes():
    assert sorted_out("b") == ([("b", "a")], ["abcd", "a", "ab", "ac", "acd"])


def test_of_two_that_fail_together_the_one_of_less_gain_goes():
    assert sorted_out("ac") == ([("c", "ab")], ["abcd", "a", "ab", "abc", "abd"])


def test_where_several_have_to_go_the_rest_is_built_up_from_the_fastest():
    gone, asked = sorted_out("ab", "cd")
    assert gone == [("b", "a"), ("d", "ac")]
    assert asked == ["abcd", "a", "ab", "ac", "acd"]


def test_where_the_baseline_fails_all_go_and_none_is_to_blame():
    gone, asked = sorted_out("a", is_plans=False)
    assert gone == [(name, "") for name in "abcd"]
    assert asked == ["abcd"]


@pytest.mark.parametrize("failing", [("ac",), ("abcd",), ("ab", "cd"), ("ab", "bc", "cd", "da"), ("a", "bcd")])
def test_what_is_left_has_passed_no_set_was_asked_twice_and_there_are_few(failing: tuple[str, ...]):
    gone, asked = sorted_out(*failing)
    left = "".join(choice.technique for choice in WHOLE[1:] if choice.technique not in dict(gone))
    assert not left or left in asked
    assert not any(set(each) <= set(left) for each in failing)
    assert len(set(asked)) == len(asked) <= 1 + 4
