"""Trains runs of the job in arms, and pairs of them from the same seeds: the baseline's and the planned one's.

Both runs of a pair have the same first weights and the same order of samples. Which of them is trained first changes
from pair to pair. Each run has a process of its own, so one that fails fails alone, and a device needs no more memory
than for the job itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hasten.facts.plan import Plan
from hasten.facts.trials import Numbers
from hasten.tune.trials.arms import Arm, Arms
from hasten.tune.trials.trial_outcome import ArmFailed, Outcome

PLAIN, PLANNED = "plain", "planned"
PIECE_SECONDS = 1.0  # of training between two answers of an arm, so that progress can be shown

Watch = Callable[[int, int], None]
"""(optimizer steps done, of all runs), as often as an arm answers; of 0 where the data does not say how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """steps: of the whole run, None where the data does not say; seed: the job's; metrics: of an evaluation -> whether
    higher is better, None where the metric does not say; none without valid data."""

    steps: int | None
    seed: int
    metrics: Mapping[str, bool | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class Trained:
    losses: Numbers  # the mean of every optimizer step
    results: Mapping[str, float]  # of the evaluation that counts; empty where there was none


@dataclass(frozen=True, kw_only=True, slots=True)
class Pair:
    seed: int
    plain: Trained | ArmFailed
    planned: Trained | ArmFailed

    @property
    def failed(self) -> bool:
        return isinstance(self.plain, ArmFailed) or isinstance(self.planned, ArmFailed)


@dataclass(frozen=True, kw_only=True, slots=True)
class RunLength:
    """steps: to take, None for the whole planned run; whole: as many as that is, None where the data does not say;
    metric: that the evaluation at the end must give, None for no evaluation."""

    steps: int | None
    whole: int | None
    metric: str | None


def trained(side: Trained | ArmFailed) -> Trained:
    """Raises the ArmFailed that came instead."""
    if isinstance(side, ArmFailed):
        raise side
    return side


def planned_run(arms: Arms) -> PlannedRun:
    """Raises ArmFailed."""
    with arms.start(PLAIN, Plan()) as arm:
        return PlannedRun(**arm.ask("planned run"))


def pieces(arm: Arm, **asked: Any) -> Iterator[dict[str, Any]]:
    """The answers of an arm that trains one run, see training_runs.train; the last one has results.

    Raises ArmFailed, also for a run without a step."""
    answer = arm.ask("train", seconds=PIECE_SECONDS, **asked)
    while answer["results"] is None:
        yield answer
        answer = arm.ask("train on", seconds=PIECE_SECONDS)
    if not answer["steps"]:
        raise ArmFailed(arm.name, Outcome.NOTHING_RAN, "no optimizer step was taken")
    yield answer


def trained_in(arm: Arm, seed: int, length: RunLength, progress: Callable[[int], None]) -> Trained:
    """progress: receives the optimizer steps done. Raises ArmFailed."""
    losses, results = list[float](), dict[str, float]()
    for answer in pieces(arm, seed=seed, steps=length.steps, metric=length.metric):
        losses += answer["losses"]
        progress(len(losses))
        results = answer["results"]
    return Trained(losses=tuple(losses), results=results)


def trained_pairs(arms: Arms, plan: Plan, seeds: Sequence[int], length: RunLength, watch: Watch) -> Iterator[Pair]:
    """One after the other, up to one that fails."""
    run_steps = length.whole or 0
    whole = 2 * len(seeds) * run_steps
    for number, seed in enumerate(seeds):
        found: dict[str, Trained | ArmFailed] = {}
        sides = [(PLAIN, Plan()), (PLANNED, plan)]
        for name, of_side in sides if number % 2 == 0 else reversed(sides):
            before = (2 * number + len(found)) * run_steps

            def progress(steps: int, before: int = before) -> None:
                watch(before + steps, whole)

            try:
                with arms.start(name, of_side) as arm:
                    found[name] = trained_in(arm, seed, length, progress)
            except ArmFailed as failure:
                found[name] = failure
            watch(before + run_steps, whole)
        pair = Pair(seed=seed, plain=found[PLAIN], planned=found[PLANNED])
        yield pair
        if pair.failed:
            return
