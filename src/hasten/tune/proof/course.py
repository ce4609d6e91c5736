"""Whole runs of the job as they are asked of arms: how far each came, and when.

Every run has a process of its own. A process that happens to be slower than the next is so for as long as it lives;
where each run draws that anew, it is in the spread of the runs, and cannot pass for a gain. It also needs no more
memory than the job itself. What was given up: the job is built, and compiled where the plan says so, for every run.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from hasten.facts.plan import Plan
from hasten.training.evaluation.stopping import at_least_as_good
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed, Fate

PIECE_SECONDS = 1.0  # of training between two answers of an arm, so that progress can be shown

Tell = Callable[[int], None]
"""(optimizer steps done)"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Aim:
    """By which result of an evaluation the job is judged. refused: why by none, None where there is one; stops: whether
    the job has early stopping of its own."""

    metric: str
    higher_is_better: bool
    refused: str | None = None
    stops: bool = False

    def is_reached(self, value: float, target: float) -> bool:
        return at_least_as_good(value, target, higher_is_better=self.higher_is_better)


class Arrival(NamedTuple):
    """The first evaluation that was at least as good as the target."""

    seconds: float
    steps: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Course:
    """One run. evaluations: seconds, steps and result of each; result: of the weights that were kept, None for a run
    that ended at a target."""

    evaluations: tuple[tuple[float, int, float], ...]
    result: float | None

    @property
    def end(self) -> Arrival:
        seconds, steps, _ = self.evaluations[-1]
        return Arrival(seconds, steps)

    def arrival(self, aim: Aim, target: float) -> Arrival | None:
        """None where it never came to the target."""
        found = (Arrival(at, steps) for at, steps, value in self.evaluations if aim.is_reached(value, target))
        return next(found, None)


def aim_of(arms: Arms, plan: Plan) -> Aim:
    """Raises ArmFailed where the plan fails, or the job watches a result that does not say which way is better."""
    with arms.start("aim", plan) as arm:
        return Aim(**arm.ask("aim"))


def trained(arms: Arms, plan: Plan, aim: Aim, seed: int, target: float | None, tell: Tell, *, called: str) -> Course:
    """Train from a seed until the target is reached; to the end where it is not, or not known. Raises ArmFailed."""
    evaluations = list[tuple[float, int, float]]()
    with arms.start(called, plan) as arm:
        answer = arm.ask("evaluated run", seed=seed, metric=aim.metric, seconds=PIECE_SECONDS)
        while True:
            tell(answer["steps"])
            value = answer["evaluated"]
            if value is not None:
                evaluations.append((answer["seconds"], answer["steps"], value))
            if answer["over"]:
                break
            if value is not None and target is not None and aim.is_reached(value, target):
                break
            answer = arm.ask("evaluated run on", seconds=PIECE_SECONDS)
    if not answer["steps"]:
        raise ArmFailed(called, Fate.NOTHING_RAN, "not one optimizer step was taken")
    return Course(evaluations=tuple(evaluations), result=answer["result"])
