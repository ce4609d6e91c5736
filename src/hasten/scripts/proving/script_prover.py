"""Whether an edited script has the gradients and updates of its baseline, up to rounding: judged beside float64.

Every arm is a process of its own that starts the script (gradient_steps.py): the baseline, the script in float64, the
baseline from two sets of nearby weights, and then one for each plan.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from hasten.errors import InvalidMeasurement
from hasten.facts.plan import Plan
from hasten.measure.gradient_error import (
    BOUND,
    GradientJudge,
    StepGradients,
    UpdateError,
    judge_updates,
    squared_errors,
    update_error,
)
from hasten.scripts.proving.gradient_steps import FLOAT64, HELD_BACK, MADE, NEARBY, NEIGHBOURS, PLAIN
from hasten.training.weights.tensor_file import read_tensors
from hasten.tuning.proof.answers import LIMIT_SECONDS, Answer
from hasten.tuning.proof.recipe_proof import Recipe
from hasten.tuning.trials.arms import Arms
from hasten.tuning.trials.trial_outcome import ArmFailed

OTHER_GRADIENT = 0.05  # relative error of the baseline, also from nearby weights, from which on it is not rounding
_PLANNED = "planned"


class ScriptProver:
    """folder: an empty one of the caller's, for all that arms write."""

    def __init__(self, arms: Arms, folder: Path) -> None:
        self._arms, self._folder = arms, folder
        self._refused: str | None = None
        self._terms = 0
        self._nearby = dict[str, float]()
        self._plans = 0

    def judge_gradients(self, plan: Plan) -> Answer:
        if self._refused is None:
            self._refused = self._with_references()
        if self._refused:
            return Answer(passes=False, reason=f"no gradient can be judged: {self._refused}", unjudged=self._refused)
        self._plans += 1
        name = f"{_PLANNED}{self._plans}"
        try:
            self._run(name, plan)
            return self._judged(name)
        except ArmFailed as failed:
            return Answer(passes=False, reason=failed.reason)
        except InvalidMeasurement as error:
            return Answer(passes=False, reason=error.what, bound=BOUND)

    def recipe_of(self, plan: Plan) -> Recipe:
        with self._arms.start("recipe", plan) as arm:
            return arm.ask("recipe", LIMIT_SECONDS)["recipe"]

    def _with_references(self) -> str:
        """Why no gradient of this script can be judged; empty where they can."""
        try:
            self._terms = self._run(PLAIN, Plan())["terms"]
            self._run(FLOAT64, Plan())
            if (share := self._share_off(PLAIN)) > OTHER_GRADIENT:
                return f"the script's gradient is {share:.0%} off its float64 reference, more than rounding"
            for arm in (f"{NEARBY}{number}" for number in range(NEIGHBOURS)):
                self._run(arm, Plan())
                if (share := self._share_off(arm)) > OTHER_GRADIENT:
                    return (
                        f"the script's gradient is {share:.0%} off where only rounding and the number of threads differ"
                    )
                for step in range(HELD_BACK):
                    for name, error in squared_errors(self._gradients(arm, step), self._truth(step)).items():
                        self._nearby[name] = self._nearby.get(name, 0.0) + error / NEIGHBOURS
        except ArmFailed as failed:
            sent = failed.sent
            if sent is not None and sent.kind == InvalidMeasurement.__name__:
                return sent.what
            return f"arm {failed.arm} {failed.reason}"
        except InvalidMeasurement as error:
            return error.what
        return ""

    def _share_off(self, name: str) -> float:
        """Of the norm of the true gradient."""
        judge = GradientJudge(terms=self._terms)
        for step in range(HELD_BACK):
            own = self._gradients(name, step)
            judge.add(StepGradients(plain=own, plan=own, reference=self._truth(step)))
        return judge.plain_share

    def _judged(self, name: str) -> Answer:
        judge = GradientJudge(terms=self._terms, nearby=self._nearby, spares=True)
        for step in range(HELD_BACK):
            judge.add(
                StepGradients(
                    plain=self._gradients(PLAIN, step), plan=self._gradients(name, step), reference=self._truth(step)
                )
            )
        verdicts = [judge.verdict(), judge_updates(self._updates(PLAIN), self._updates(name))]
        worst = max(verdicts, key=lambda verdict: verdict.multiple)
        finite = worst.multiple if worst.multiple < float("inf") else None
        passes = all(verdict.passes for verdict in verdicts)
        return Answer(passes=passes, reason=str(worst), gradient_error=finite, bound=worst.bound)

    def _updates(self, name: str) -> dict[str, UpdateError]:
        own, truth = ([self._tensors(arm, "weights", step) for step in range(MADE + 1)] for arm in (name, FLOAT64))
        return update_errors(own, truth)

    def _truth(self, step: int) -> dict[str, Tensor]:
        """Of every trained parameter; zero where the loss does not reach it."""
        gradients = self._gradients(FLOAT64, step)
        weights = self._tensors(FLOAT64, "weights", 0)
        return {name: gradients.get(name, each.new_zeros(each.shape)) for name, each in weights.items()}

    def _gradients(self, name: str, step: int) -> dict[str, Tensor]:
        return self._tensors(name, "gradients", step)

    def _tensors(self, name: str, what: str, step: int) -> dict[str, Tensor]:
        return read_tensors(self._folder / f"{name}-{what}-{step}.safetensors")

    def _run(self, name: str, plan: Plan) -> Mapping[str, Any]:
        with self._arms.start(name, plan) as arm:
            return arm.ask("gradients", LIMIT_SECONDS, folder=str(self._folder), arm=name, terms=self._terms)


def update_errors(own: Sequence[Mapping[str, Tensor]], truth: Sequence[Mapping[str, Tensor]]) -> dict[str, UpdateError]:
    """Weights before the first update and after each one, of an arm and of the script in float64.

    An arm starts from its own weights: those of nn.init.orthogonal_ are rounded differently by other
    numbers of threads.
    """
    found = dict[str, UpdateError]()
    for name in truth[0].keys() & own[0].keys():
        other = own[0][name].double() - truth[0][name]
        for step in range(1, len(truth)):
            before, after = (truth[each][name] + other for each in (step - 1, step))
            found[name] = found.get(name, UpdateError()) + update_error(before, own[step][name], after)
    return found
