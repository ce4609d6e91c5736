"""Whether a plan computes the job's own gradients and updates: asked of an arm, told as a verdict.

The plain job is asked for its references once in a search, in an arm of its own, and they are kept in a folder; every
plan then costs one arm of eight steps. A plan that should not touch the gradients at all is first asked for less:
whether they are the same to the last bit, which needs no reference (same_gradients.py). What is compared stands in
gradients.py, how it is judged in measure/oracle.py. An arm that fails on the way is a proof that was not passed.

A plan that does not pass is asked once more, on the eight batches after these. Where the job has kinks, an honest plan
can have one flip of an activation that all neighbours of the plain job lack; it does not have it twice. A wrong
gradient does not go away. What was given up: one that is wrong in a single one of sixteen batches.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan
from hasten.facts.trials import Proven
from hasten.tune.search.candidates import SAME_GRADIENTS
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed, Fate

STEPS = 8  # that the oracle is calibrated for
LIMIT_SECONDS = 600.0  # of one arm's steps


@dataclass(frozen=True, kw_only=True, slots=True)
class GradientProof:
    """Whether a plan's gradients and updates are the plain job's.

    error: in multiples of the plain job's own; None where it is infinite or nothing was judged. same_bits: whether they
    are its own to the bit. fate: how the plan's arm failed, None where it did not. unjudged: why no gradient of this
    job can be judged, whatever the plan; None where they can.
    """

    passes: bool
    reason: str
    error: float | None = None
    bound: float | None = None
    same_bits: bool = False
    fate: Fate | None = None
    unjudged: str | None = None

    def of(self, choice: Choice) -> Proven:
        """The record of one choice that this plan was made for."""
        return Proven(
            choice=choice, passes=self.passes, reason=self.reason, gradient_error=self.error, bound=self.bound
        )


class GradientProver:
    """Proves plans of one job. folder: an empty one, for what the plain job keeps: some 12 bytes for every number that
    is trained, times the steps. It is filled as plans are proven; whoever gave it removes it."""

    def __init__(self, arms: Arms, folder: Path, *, steps: int = STEPS, limit_seconds: float = LIMIT_SECONDS) -> None:
        self._arms, self._folder, self._steps, self._limit = arms, folder, steps, limit_seconds
        self._answers = dict[int, Mapping[str, Any]]()
        self._gradients: Mapping[str, Any] | None = None

    def prove(self, plan: Plan, *, claim: Preserves = Preserves.ROUNDING) -> GradientProof:
        """Take the plan's own steps beside those of the plain job.

        claim: BITS, when every gradient and update must be the plain job's to the bit, or ROUNDING. A job that does not
        give itself the same bits twice, as on some accelerators, is judged by rounding under either.
        """
        if claim is Preserves.ROUNDING and not self._answers and _may_be_same(plan):
            same = self._proven_same(plan)
            if same is not None:
                return same
        if refused := self._kept(0)["refused"]:
            return GradientProof(passes=False, reason=f"no gradient can be judged: {refused}", unjudged=refused)
        found = self._asked(plan, 0)
        if not found.passes and found.fate is None and not self._kept(self._steps)["refused"]:
            again = self._asked(plan, self._steps)
            found = again if again.passes else found
        if claim is not Preserves.BITS or not found.passes or found.same_bits:
            return found
        if not self._asked(Plan(), 0).same_bits:
            return found
        reason = f"it claims the same bits and has others, although {found.reason}"
        return GradientProof(passes=False, reason=reason, error=found.error, bound=found.bound)

    def _proven_same(self, plan: Plan) -> GradientProof | None:
        """None where a bit differs, the updates do not pass, or an arm fails: what it is then, the references tell."""
        try:
            if self._gradients is None:
                with self._arms.start("gradients", Plan()) as arm:
                    self._gradients = arm.ask("keep gradients", self._limit, folder=str(self._folder))
            with self._arms.start("proof", plan) as arm:
                found = arm.ask("compare gradients", self._limit, folder=str(self._folder), kept=self._gradients)
        except ArmFailed:
            return None
        if not found.pop("same") or not found["passes"]:
            return None
        return GradientProof(**found)

    def _kept(self, first: int) -> Mapping[str, Any]:
        """What the plain job has kept of the steps from `first` on; asked for once."""
        if first not in self._answers:
            self._answers[first] = self._kept_by_an_arm(first)
        return self._answers[first]

    def _kept_by_an_arm(self, first: int) -> Mapping[str, Any]:
        try:
            with self._arms.start("references", Plan()) as arm:
                return arm.ask("references", self._limit, folder=str(self._folder), first=first, steps=self._steps)
        except ArmFailed as failed:
            return {"refused": f"the plain job {failed.fate.value}: {failed.what}"}

    def _asked(self, plan: Plan, first: int) -> GradientProof:
        try:
            with self._arms.start("proof", plan) as arm:
                found = arm.ask("gradients", self._limit, folder=str(self._folder), kept=self._kept(first))
        except ArmFailed as failed:
            return GradientProof(passes=False, reason=f"{failed.fate.value}: {failed.what}", fate=failed.fate)
        return GradientProof(**found)


def _may_be_same(plan: Plan) -> bool:
    claims = [planned.choice for planned in plan.choices if planned.choice.preserves is not Preserves.BITS]
    return bool(claims) and all(choice.technique in SAME_GRADIENTS for choice in claims)
