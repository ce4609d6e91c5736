"""Which of several choices have to go, found with few proofs. What fails is planted: sets that fail when all there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from hasten.facts.choice import Choice
from hasten.tune.proof.dropping import Asked, Dropped, without_conflicts, without_harmful

A, B, C, D = (Choice(technique=name, value=True) for name in "abcd")
EXACT = Choice(technique="exact", value=True)
WHOLE = (EXACT, A, B, C, D)


@dataclass(frozen=True)
class Said:
    passes: bool
    about: str


class Planted:
    """A proof that fails where all of one set are there; asked: what it was asked, in order."""

    def __init__(self, *failing: str, has_time: Callable[[list[str]], bool] = lambda asked: True) -> None:
        self.failing, self.asked = failing, list[str]()
        self.proof = Asked(self.said, lambda: has_time(self.asked))

    def said(self, choices: tuple[Choice, ...]) -> Said:
        names = "".join(choice.technique for choice in choices if choice is not EXACT)
        assert EXACT in choices
        self.asked.append(names)
        return Said(not any(set(each) <= set(names) for each in self.failing), names)


def told(dropped: list[Dropped[Said]]) -> list[tuple[str, str, bool]]:
    """Who goes, beside whom, and whether that one is to blame."""
    return [
        (each.choice.technique, "".join(choice.technique for choice in each.beside), each.blamed) for each in dropped
    ]


def harmful(planted: Planted) -> list[tuple[str, str, bool]]:
    assert not planted.proof.surely(WHOLE).passes
    return told(without_harmful(planted.proof, WHOLE, WHOLE[1:]))


def conflicting(planted: Planted) -> list[tuple[str, str, bool]]:
    return told(without_conflicts(planted.proof, WHOLE, WHOLE[1:]))


def test_who_fails_alone_goes_alone():
    planted = Planted("b")
    assert harmful(planted) == [("b", "", True)]
    assert planted.asked == ["abcd", "a", "b", "c", "d", "acd"]


def test_of_two_that_fail_together_the_one_of_less_gain_goes():
    planted = Planted("ac")
    assert harmful(planted) == [("c", "abd", True)]
    assert planted.asked == ["abcd", "a", "b", "c", "d", "abc", "abd"]


def test_where_several_have_to_go_the_rest_is_built_up_from_the_fastest():
    planted = Planted("ab", "cd")
    assert harmful(planted) == [("b", "a", True), ("d", "ac", True)]
    assert planted.asked[5:] == ["abc", "abd", "acd", "bcd", "ab", "ac"]


@pytest.mark.parametrize("failing", [("ac",), ("abcd",), ("ab", "cd"), ("ab", "bc", "cd", "da"), ("a", "bcd")])
def test_what_is_left_has_passed_no_set_was_asked_twice_and_there_are_few(failing: tuple[str, ...]):
    for drop in (harmful, conflicting):
        planted = Planted(*failing)
        gone = {name for name, _, _ in drop(planted)}
        left = "".join(choice.technique for choice in WHOLE[1:] if choice.technique not in gone)
        assert left in planted.asked
        assert not any(set(each) <= set(left) for each in failing)
        assert len(set(planted.asked)) == len(planted.asked) <= 1 + 3 * 4


def test_without_time_to_ask_all_go_and_none_is_blamed():
    planted = Planted("ac", has_time=lambda asked: False)
    assert conflicting(planted) == [("a", "bcd", False), ("b", "acd", False), ("c", "abd", False), ("d", "abc", False)]
    assert planted.asked == ["abcd"]


def test_when_the_time_ends_what_has_passed_so_far_stays():
    planted = Planted("ab", "cd", has_time=lambda asked: len(asked) < 7)
    assert conflicting(planted) == [("b", "a", True), ("c", "abd", False), ("d", "abc", False)]
    assert planted.asked == ["abcd", "abc", "abd", "acd", "bcd", "a", "ab"]
