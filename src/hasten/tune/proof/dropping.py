"""Which of several choices are dropped, so that the rest passes a proof together.

Two choices that pass alone can fail together, so a plan is proven as a whole. Where it fails, few more proofs find the
choices to drop, as each takes time:

1. `without_harmful` asks of each choice alone, and drops those that fail. A choice in a set that has passed is not
   asked alone.
2. Then one is removed at a time, the last one first, as the largest gain comes first. As soon as the rest passes, that
   choice is dropped, and no other.
3. Where no single one is to blame, the rest is built up from the first one on, and those that fail beside the ones
   before are dropped.

No set is asked twice, and there are at most three proofs for each choice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Curves, Proven
from hasten.tune.search.candidates import without

Choices = tuple[Choice, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What a proof says of a plan; the fields of facts.trials.Proven but its choice, and in addition:

    curves: losses that were compared. unjudged: why no gradient of this job can be judged, whatever the plan. is_plans:
    whether another plan could have passed, and not the baseline failed.
    """

    passes: bool
    reason: str
    gradient_error: float | None = None
    bound: float | None = None
    by_losses: bool = False
    inconclusive: bool = False
    unanswered: bool = False
    curves: Curves | None = None
    unjudged: str | None = None
    is_plans: bool = True

    def of(self, choice: Choice, reason: str = "") -> Proven:
        """The record of one choice of the plan. reason: in place of the answer's own."""
        return Proven(
            choice=choice,
            passes=self.passes,
            reason=reason or self.reason,
            gradient_error=self.gradient_error,
            bound=self.bound,
            by_losses=self.by_losses,
            inconclusive=self.inconclusive,
            unanswered=self.unanswered,
        )


class Asked:
    """A proof that each set of choices is put to once.

    proof: of a whole plan's choices; has_time: whether there is time for one more set, where it can be skipped.
    """

    def __init__(self, proof: Callable[[Choices], Answer], has_time: Callable[[], bool] = lambda: True) -> None:
        self._proof, self._has_time = proof, has_time
        self._answers = dict[frozenset[str], Answer]()

    def surely(self, choices: Choices) -> Answer:
        """The answer, whatever time it takes."""
        key = _key(choices)
        if key not in self._answers:
            self._answers[key] = self._proof(choices)
        return self._answers[key]

    def in_time(self, choices: Choices) -> Answer | None:
        """The answer; None where it is unknown and there is no time to ask."""
        return self.surely(choices) if _key(choices) in self._answers or self._has_time() else None

    def is_cleared(self, choice: Choice) -> bool:
        """Whether it was in a set that has passed: then it does no harm alone."""
        return any(str(choice) in names for names, answer in self._answers.items() if answer.passes)


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """A choice that is dropped.

    answer: of what has failed. beside: the choices beside which it failed, empty where it was alone. blamed: whether it
    is to blame beside them, and not another one, which there was no time to find out.
    """

    choice: Choice
    answer: Answer
    beside: Choices = ()
    blamed: bool = True


@dataclass(frozen=True, kw_only=True, slots=True)
class Sorted:
    """passed: choices that have passed together; answer: of the plan with them, or of the one that failed where none
    has."""

    passed: Choices
    answer: Answer
    dropped: list[Dropped]


Drop = Callable[[Asked, Choices, Sequence[Choice]], list[Dropped]]


def sort_out(asked: Asked, whole: Choices, among: Choices, drop: Drop) -> Sorted:
    """among: those of the whole that may be dropped. drop: how, where the whole fails."""
    answer = asked.surely(whole)
    dropped = [] if answer.passes else drop(asked, whole, among)
    kept = without(whole, *(each.choice for each in dropped))
    passed = tuple(choice for choice in among if _is_in(kept, choice))
    return Sorted(passed=passed, answer=asked.surely(kept) if passed else answer, dropped=dropped)


def without_harmful(asked: Asked, whole: Choices, among: Sequence[Choice]) -> list[Dropped]:
    """From a whole that has failed, drop those that fail alone, and of the others those that fail with them."""
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


def without_conflicts(asked: Asked, whole: Choices, among: Sequence[Choice]) -> list[Dropped]:
    """From a whole that has failed, drop those without which the rest passes, as far as there is time."""
    failed = asked.surely(whole)
    if len(among) == 1:
        return [Dropped(choice=among[0], answer=failed)]
    for removed in reversed(among):
        answer = asked.in_time(without(whole, removed))
        if answer is None:
            break
        if answer.passes:
            return [Dropped(choice=removed, answer=failed, beside=_others(among, removed))]
    return _built_up(asked, whole, among)


def _built_up(asked: Asked, whole: Choices, among: Sequence[Choice]) -> list[Dropped]:
    kept, dropped = list[Choice](), list[Dropped]()
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


def claiming(choices: Choices, *claims: Preserves) -> Choices:
    return tuple(choice for choice in choices if choice.preserves in claims)


def listed(choices: Choices) -> str:
    return ", ".join(map(str, choices))


def _with_only(whole: Choices, among: Sequence[Choice], kept: Sequence[Choice]) -> Choices:
    """The whole with only these of those that may be dropped."""
    return without(whole, *(choice for choice in among if not _is_in(kept, choice)))


def _is_in(choices: Sequence[Choice], one: Choice) -> bool:
    return any(one is choice for choice in choices)


def _others(among: Sequence[Choice], one: Choice) -> Choices:
    return tuple(choice for choice in among if choice is not one)


def _key(choices: Choices) -> frozenset[str]:
    return frozenset(map(str, choices))
