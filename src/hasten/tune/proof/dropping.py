"""Which of several choices have to go, so that the rest passes a proof together.

What a plan is made of has to be proven as one plan: two choices that pass alone can fail together. So a set of choices
is put to the proof as it will be written. Where it fails, few more proofs say who has to go, as each takes time:

1. Where that can be told quickly, each choice is asked alone, and who fails alone goes (`without_harmful`). Who was
   in a set that has passed is not asked.
2. Then one is left out at a time, the last one first, as choices come with the largest gain first. As soon as the rest
   passes, that one has to go, and no other.
3. Where none is to blame by itself, the rest is built up from the first one on, and who fails beside those before goes.

No set is asked twice, and there are never more proofs than three for each choice. What was given up: of several sets
that would pass, the largest is found where one choice is too many, and one to which nothing can be added where several
are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from hasten.facts.choice import Choice
from hasten.tune.search.candidates import without

Choices = tuple[Choice, ...]


class Answer(Protocol):
    @property
    def passes(self) -> bool: ...


Given = TypeVar("Given", bound=Answer)


class Asked(Generic[Given]):
    """A proof that each set of choices is put to once.

    proof: of a whole plan's choices; has_time: whether one more set can be asked, where there is a choice.
    """

    def __init__(self, proof: Callable[[Choices], Given], has_time: Callable[[], bool] = lambda: True) -> None:
        self._proof, self._has_time = proof, has_time
        self._answers = dict[frozenset[str], Given]()
        self._passed = list[frozenset[str]]()

    def surely(self, choices: Choices) -> Given:
        """The answer, whatever time it takes."""
        key = _key(choices)
        if key not in self._answers:
            self._answers[key] = self._proof(choices)
            self._passed += [key] if self._answers[key].passes else []
        return self._answers[key]

    def in_time(self, choices: Choices) -> Given | None:
        """The answer; None where nobody knows it and there is no time to ask."""
        return self.surely(choices) if _key(choices) in self._answers or self._has_time() else None

    def is_cleared(self, choice: Choice) -> bool:
        """Whether it was in a set that has passed: then it does no harm alone."""
        return any(str(choice) in passed for passed in self._passed)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped(Generic[Given]):
    """A choice that has to go.

    answer: of what has failed. beside: the choices beside which that was, empty where it was alone. blamed: whether
    it is that one that has to go from beside them, and not another, which there was no time to find out.
    """

    choice: Choice
    answer: Given
    beside: Choices = ()
    blamed: bool = True


def without_harmful(asked: Asked[Given], whole: Choices, among: Sequence[Choice]) -> list[Dropped[Given]]:
    """Those that have to go from a whole that has failed: who fails alone, and of the others, who fails with them.

    among: those of the whole that may be to blame; the others stay.
    """
    suspects = [choice for choice in among if not asked.is_cleared(choice)]
    alone = {str(choice): asked.surely(_with_only(whole, among, [choice])) for choice in suspects}
    harmful = [
        Dropped(choice=choice, answer=alone[str(choice)]) for choice in suspects if not alone[str(choice)].passes
    ]
    rest = [choice for choice in among if not any(choice is each.choice for each in harmful)]
    left = _with_only(whole, among, rest)
    if not rest or asked.surely(left).passes:
        return harmful
    return harmful + without_conflicts(asked, left, rest)


def without_conflicts(asked: Asked[Given], whole: Choices, among: Sequence[Choice]) -> list[Dropped[Given]]:
    """Those that have to go from a whole that has failed, so that the rest passes, as far as there is time.

    among: those of the whole that may be to blame; the others stay.
    """
    failed = asked.surely(whole)
    if len(among) == 1:
        return [Dropped(choice=among[0], answer=failed)]
    for left_out in reversed(among):
        answer = asked.in_time(without(whole, left_out))
        if answer is None:
            break
        if answer.passes:
            return [Dropped(choice=left_out, answer=failed, beside=_others(among, left_out))]
    return _built_up(asked, whole, among)


def _built_up(asked: Asked[Given], whole: Choices, among: Sequence[Choice]) -> list[Dropped[Given]]:
    kept, dropped = list[Choice](), list[Dropped[Given]]()
    for choice in among:
        answer = asked.in_time(_with_only(whole, among, [*kept, choice]))
        if answer is None:
            beside = _others(among, choice)
            dropped.append(Dropped(choice=choice, answer=asked.surely(whole), beside=beside, blamed=False))
        elif answer.passes:
            kept.append(choice)
        else:
            dropped.append(Dropped(choice=choice, answer=answer, beside=tuple(kept)))
    return dropped


def _with_only(whole: Choices, among: Sequence[Choice], kept: Sequence[Choice]) -> Choices:
    """The whole with only these of those that may go."""
    return without(whole, *(choice for choice in among if not any(choice is each for each in kept)))


def _others(among: Sequence[Choice], one: Choice) -> Choices:
    return tuple(choice for choice in among if choice is not one)


def _key(choices: Choices) -> frozenset[str]:
    return frozenset(map(str, choices))
