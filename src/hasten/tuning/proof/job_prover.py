"""Whether a plan has the gradients and updates of a job's baseline, asked of arms.

The baseline's references are computed once in a search; every plan then costs one arm of eight steps
(gradient_check.py). A plan that does not pass is judged once more, on the next eight batches: where the job has kinks,
an honest plan can flip one activation, but not twice. A wrong gradient does not go away.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hasten.facts.plan import Plan
from hasten.tuning.proof.answers import LIMIT_SECONDS, Answer
from hasten.tuning.proof.recipe_proof import Recipe
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed

STEPS_OF_GRADIENTS = 8  # that the oracle is calibrated for


class JobProver:
    """folder: an empty one, for what the baseline keeps: about 12 bytes for every number that is trained, times the
    steps. The caller removes it."""

    def __init__(self, arms: Arms, folder: Path, *, steps: int = STEPS_OF_GRADIENTS) -> None:
        self._arms, self._folder, self._steps = arms, folder, steps
        self._references = dict[int, Mapping[str, Any]]()  # by their first step

    def recipe_of(self, plan: Plan) -> Recipe:
        return {}

    def judge_gradients(self, plan: Plan) -> Answer:
        """Whether the plan's own steps have the gradients and updates of the baseline, up to rounding."""
        if refused := self._kept(0)["refused"]:
            return Answer(passes=False, reason=f"no gradient can be judged: {refused}", unjudged=refused)
        found = self._judged(plan, 0)
        if not found.passes and found.bound is not None and not self._kept(self._steps)["refused"]:
            again = self._judged(plan, self._steps)
            found = again if again.passes else found
        return found

    def _kept(self, first: int) -> Mapping[str, Any]:
        """What the baseline has kept of the steps from `first` on."""
        if first not in self._references:
            try:
                self._references[first] = self._ask(Plan(), "references", first=first, steps=self._steps)
            except ArmFailed as failed:
                self._references[first] = {"refused": f"the baseline {failed.reason}"}
        return self._references[first]

    def _judged(self, plan: Plan, first: int) -> Answer:
        """Without a bound where the plan's arm failed."""
        try:
            return Answer(**self._ask(plan, "gradients", kept=self._kept(first)))
        except ArmFailed as failed:
            return Answer(passes=False, reason=failed.reason)

    def _ask(self, plan: Plan, do: str, **fields: Any) -> dict[str, Any]:
        with self._arms.start(do, plan) as arm:
            return arm.ask(do, LIMIT_SECONDS, folder=str(self._folder), **fields)
