"""Choices that claim to be equal up to rounding, put to the proof of their gradients as the plan will have them.

They are proven together, and together with all that claims bits, for which the gradients have to be the same whatever
else the plan has: a harm that only both do shows, and it costs nothing. What claims less is left out of that proof, as
gradients say nothing of it: bf16 may differ by far more than rounding.

Where they fail together, dropping.py finds who has to go. Each proof is an arm of eight steps; what the plain job keeps
for all of them is kept once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hasten.facts.choice import Preserves
from hasten.facts.trials import Doing, Proven
from hasten.tune.proof.dropping import Asked, Choices, Dropped, without_harmful
from hasten.tune.proof.gradient_proof import GradientProof, GradientProver
from hasten.tune.search.candidates import plan_of, without

Tell = Callable[[Doing], None]


class ByGradients:
    """Proves plans of one job. unjudged: why no gradient of it can be judged, once that was found out."""

    def __init__(self, prover: GradientProver, tell: Tell) -> None:
        self._prover, self._tell = prover, tell
        self._asked = Asked(self._proof)
        self.unjudged: str | None = None

    def prove(self, choices: Choices) -> list[Proven]:
        """One record for each choice that claims to be equal up to rounding; none where no gradient can be judged.
        Those that pass have passed together."""
        rounding = claiming(choices, Preserves.ROUNDING)
        if not rounding or self.unjudged is not None:
            return []
        whole = _judged(choices)
        together = self._asked.surely(whole)
        if together.unjudged is not None:
            self.unjudged = together.unjudged
            return []
        dropped = [] if together.passes else without_harmful(self._asked, whole, rounding)
        kept = without(whole, *(each.choice for each in dropped))
        passed = [choice for choice in rounding if any(choice is each for each in kept)]
        found = [self._asked.surely(kept).of(choice) for choice in passed]
        return found + [_record(each, claiming(whole, Preserves.BITS)) for each in dropped]

    def _proof(self, choices: Choices) -> GradientProof:
        self._tell(Doing(what=f"proving the gradients of {listed(claiming(choices, Preserves.ROUNDING))}"))
        return self._prover.prove(plan_of(choices))


def claiming(choices: Choices, *claims: Preserves) -> Choices:
    return tuple(choice for choice in choices if choice.preserves in claims)


def listed(choices: Choices) -> str:
    return ", ".join(map(str, choices))


def _judged(choices: Choices) -> Choices:
    """What gradients can be asked of."""
    loose = (choice for choice in choices if choice.preserves not in (Preserves.BITS, Preserves.ROUNDING))
    return without(choices, *loose)


def _record(dropped: Dropped[GradientProof], exact: Choices) -> Proven:
    found = dropped.answer
    if dropped.beside:
        reason = f"fails together with {listed(dropped.beside)}, and what is left without it passes: {found.reason}"
    else:
        reason = found.reason + (f" (in a plan with {listed(exact)})" if exact else "")
    return replace(found, reason=reason).of(dropped.choice)
