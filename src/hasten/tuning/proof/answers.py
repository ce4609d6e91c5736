"""What a proof answers of a whole plan, and by it which of the plan's choices stand.

Two choices that pass alone can fail together, so a plan is proven as a whole. Where it fails, it is built up from the
first choice on, as the largest gain comes first, and those that fail beside the ones before are dropped. No plan is
proven twice.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Curves, Doing, Proven
from hasten.tuning.search.candidates import without

Choices = tuple[Choice, ...]
Report = Callable[[Doing], None]

LIMIT_SECONDS = 600.0  # of an arm, for all steps of a proof


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
    unharmed: bool = False
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
            unharmed=self.unharmed,
            unanswered=self.unanswered,
        )


Proof = Callable[[Choices], Answer]


def sort_out(proof: Proof, whole: Choices, among: Choices) -> tuple[list[Proven], Answer]:
    """One record for each choice among the whole that may be dropped; none where no gradient can be judged. And the
    answer of the plan with those that have passed together, or of the one that failed where none has."""
    answers = dict[frozenset[str], Answer]()

    def asked(choices: Choices) -> Answer:
        key = frozenset(map(str, choices))
        if key not in answers:
            answers[key] = proof(choices)
        return answers[key]

    answer = asked(whole)
    if answer.unjudged is not None:
        return [], answer
    if answer.passes or not answer.is_plans:
        return [answer.of(choice) for choice in among], answer
    kept, dropped = list[Choice](), dict[int, Proven]()
    for choice in among:
        one = asked(without(whole, *(each for each in among if not _is_in([*kept, choice], each))))
        if one.passes:
            kept.append(choice)
        else:
            beside = f"fails together with {listed(kept)}: " if kept and one.is_plans else ""
            dropped[id(choice)] = one.of(choice, f"{beside}{one.reason}")
    left = without(whole, *(choice for choice in among if id(choice) in dropped))
    passed = [choice for choice in among if _is_in(left, choice)]
    answer = asked(left) if passed else answer
    return [*(answer.of(choice) for choice in passed), *dropped.values()], answer


def claiming(choices: Choices, *claims: Preserves) -> Choices:
    return tuple(choice for choice in choices if choice.preserves in claims)


def listed(choices: Sequence[Choice]) -> str:
    return ", ".join(map(str, choices))


def _is_in(choices: Sequence[Choice], one: Choice) -> bool:
    return any(one is choice for choice in choices)
