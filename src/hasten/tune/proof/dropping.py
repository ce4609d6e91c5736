"""Which of several choices are dropped, so that the rest passes a proof together.

Two choices that pass alone can fail together, so a plan is proven as a whole. Where it fails, one choice is removed at
a time, the last one first, as the largest gain comes first. As soon as the rest passes, that choice is dropped, and no
other. Where no single one is to blame, the rest is built up from the first one on, and those that fail beside the ones
before are dropped. No plan is proven twice.
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
    """A proof of a whole plan's choices, which is run once for each set of them."""

    def __init__(self, proof: Callable[[Choices], Answer]) -> None:
        self._proof = proof
        self._answers = dict[frozenset[str], Answer]()

    def __call__(self, choices: Choices) -> Answer:
        key = frozenset(map(str, choices))
        if key not in self._answers:
            self._answers[key] = self._proof(choices)
        return self._answers[key]


@dataclass(frozen=True, kw_only=True, slots=True)
class Dropped:
    """answer: of what has failed; beside: the choices beside which it failed, empty where it was alone."""

    choice: Choice
    answer: Answer
    beside: Choices = ()

    @property
    def reason(self) -> str:
        if not self.beside or not self.answer.is_plans:
            return self.answer.reason
        return f"fails together with {listed(self.beside)}, and the rest passes without it: {self.answer.reason}"


@dataclass(frozen=True, kw_only=True, slots=True)
class Sorted:
    """passed: choices that have passed together; answer: of the plan with them, or of the one that failed where none
    has."""

    passed: Choices
    answer: Answer
    dropped: list[Dropped]

    @property
    def proofs(self) -> list[Proven]:
        passed = [self.answer.of(choice) for choice in self.passed]
        return passed + [each.answer.of(each.choice, each.reason) for each in self.dropped]


def sort_out(asked: Asked, whole: Choices, among: Choices) -> Sorted:
    """among: those of the whole that may be dropped."""
    answer = asked(whole)
    dropped = [] if answer.passes else _dropped(asked, whole, among)
    kept = without(whole, *(each.choice for each in dropped))
    passed = tuple(choice for choice in among if _is_in(kept, choice))
    return Sorted(passed=passed, answer=asked(kept) if passed else answer, dropped=dropped)


def _dropped(asked: Asked, whole: Choices, among: Choices) -> list[Dropped]:
    """From a whole that has failed, those without which the rest passes."""
    failed = asked(whole)
    if len(among) == 1 or not failed.is_plans:
        return [Dropped(choice=choice, answer=failed) for choice in among]
    for removed in reversed(among):
        if asked(without(whole, removed)).passes:
            beside = tuple(choice for choice in among if choice is not removed)
            return [Dropped(choice=removed, answer=failed, beside=beside)]
    kept, dropped = list[Choice](), list[Dropped]()
    for choice in among:
        answer = asked(without(whole, *(each for each in among if not _is_in([*kept, choice], each))))
        if answer.passes:
            kept.append(choice)
        else:
            dropped.append(Dropped(choice=choice, answer=answer, beside=tuple(kept)))
    return dropped


def claiming(choices: Choices, *claims: Preserves) -> Choices:
    return tuple(choice for choice in choices if choice.preserves in claims)


def listed(choices: Sequence[Choice]) -> str:
    return ", ".join(map(str, choices))


def _is_in(choices: Sequence[Choice], one: Choice) -> bool:
    return any(one is choice for choice in choices)
