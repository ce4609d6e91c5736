"""Proves choices that claim to be equal up to rounding, by the gradients and updates of the plan.

They are proven together with everything that claims bits, and without what claims less: bf16 may differ by far more
than rounding. The baseline's references are computed once in a search; every plan then costs one arm of eight steps. A
plan that should not change gradients at all is first compared to the last bit, which needs no reference
(same_gradients.py). gradient_check.py says what is compared.

A plan that does not pass is judged once more, on the next eight batches. Where the job has kinks, an honest plan can
flip one activation; it does not do so twice. A wrong gradient does not go away.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from hasten.facts.choice import Preserves
from hasten.facts.plan import Plan
from hasten.facts.trials import Doing, Proven
from hasten.tune.proof.dropping import Answer, Asked, Choices, claiming, listed, sort_out, without_harmful
from hasten.tune.search.candidates import SAME_GRADIENTS, plan_of, without
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

STEPS = 8  # that the oracle is calibrated for
LIMIT_SECONDS = 600.0  # of one arm's steps


class ByGradients:
    """Proves plans of one job. unjudged: why no gradient of it can be judged, once that is known."""

    def __init__(self, prover: GradientProver, report: Callable[[Doing], None]) -> None:
        self._prover, self._report = prover, report
        self._asked = Asked(self._proof)
        self.unjudged: str | None = None

    def prove(self, choices: Choices) -> list[Proven]:
        """One record for each choice that claims to be equal up to rounding; none where no gradient can be judged.
        Those that pass have passed together."""
        rounding = claiming(choices, Preserves.ROUNDING)
        if not rounding or self.unjudged is not None:
            return []
        strict = claiming(choices, Preserves.BITS, Preserves.ROUNDING)
        whole = without(choices, *(choice for choice in choices if choice not in strict))
        self.unjudged = self._asked.surely(whole).unjudged
        if self.unjudged is not None:
            return []
        found = sort_out(self._asked, whole, rounding, without_harmful)
        proofs, exact = [found.answer.of(choice) for choice in found.passed], claiming(whole, Preserves.BITS)
        for each in found.dropped:
            reason = each.answer.reason
            if each.beside:
                reason = f"fails together with {listed(each.beside)}, and the rest passes without it: {reason}"
            elif exact:
                reason = f"{reason} (in a plan with {listed(exact)})"
            proofs.append(each.answer.of(each.choice, reason))
        return proofs

    def _proof(self, choices: Choices) -> Answer:
        self._report(Doing(what=f"proving the gradients of {listed(claiming(choices, Preserves.ROUNDING))}"))
        return self._prover.prove(plan_of(choices))


class GradientProver:
    """folder: an empty one, for what the baseline keeps: about 12 bytes for every number that is trained, times the
    steps. The caller removes it."""

    def __init__(self, arms: Arms, folder: Path, *, steps: int = STEPS) -> None:
        self._arms, self._folder, self._steps = arms, folder, steps
        self._references = dict[int, Mapping[str, Any]]()  # by their first step
        self._gradients: Mapping[str, Any] | None = None

    def prove(self, plan: Plan) -> Answer:
        """Whether the plan's own steps have the gradients and updates of the baseline, up to rounding."""
        if not self._references and _may_be_same(plan):
            same = self._proven_same(plan)
            if same is not None:
                return same
        if refused := self._kept(0)["refused"]:
            return Answer(passes=False, reason=f"no gradient can be judged: {refused}", unjudged=refused)
        found = self._judged(plan, 0)
        if not found.passes and found.bound is not None and not self._kept(self._steps)["refused"]:
            again = self._judged(plan, self._steps)
            found = again if again.passes else found
        return found

    def _proven_same(self, plan: Plan) -> Answer | None:
        """None where a bit differs, the updates do not pass, or an arm fails: the references then judge it."""
        try:
            if self._gradients is None:
                self._gradients = self._asked(Plan(), "keep gradients")
            found = self._asked(plan, "compare gradients", kept=self._gradients)
        except ArmFailed:
            return None
        return Answer(**found) if found.pop("same") and found["passes"] else None

    def _kept(self, first: int) -> Mapping[str, Any]:
        """What the baseline has kept of the steps from `first` on."""
        if first not in self._references:
            try:
                self._references[first] = self._asked(Plan(), "references", first=first, steps=self._steps)
            except ArmFailed as failed:
                self._references[first] = {"refused": f"the baseline {failed.reason}"}
        return self._references[first]

    def _judged(self, plan: Plan, first: int) -> Answer:
        """Without a bound where the plan's arm failed."""
        try:
            return Answer(**self._asked(plan, "gradients", kept=self._kept(first)))
        except ArmFailed as failed:
            return Answer(passes=False, reason=failed.reason)

    def _asked(self, plan: Plan, do: str, **fields: Any) -> dict[str, Any]:
        with self._arms.start(do, plan) as arm:
            return arm.ask(do, LIMIT_SECONDS, folder=str(self._folder), **fields)


def _may_be_same(plan: Plan) -> bool:
    claims = [planned.choice for planned in plan.choices if planned.choice.preserves is not Preserves.BITS]
    return bool(claims) and all(choice.technique in SAME_GRADIENTS for choice in claims)
