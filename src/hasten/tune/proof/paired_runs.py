"""Trains runs of the job in arms, and pairs of them from the same seeds: the baseline's and the planned one's.

Both runs of a pair have the same first weights and the same order of samples. Which of them is trained first changes
from pair to pair. A run that fails fails alone, and its arm is started again for the next pair.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
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


def losses_of(side: Trained | ArmFailed) -> Numbers:
    """Raises the ArmFailed that came instead."""
    return trained(side).losses


def trained(side: Trained | ArmFailed) -> Trained:
    """Raises the ArmFailed that came instead."""
    if isinstance(side, ArmFailed):
        raise side
    return side


def pieces(arm: Arm, limit_seconds: float | None = None, **asked: Any) -> Iterator[dict[str, Any]]:
    """The answers of an arm that trains one run, see training_runs.train; the last one has results.

    Raises ArmFailed, also for a run without a step."""
    answer = arm.ask("train", limit_seconds, seconds=PIECE_SECONDS, **asked)
    while answer["results"] is None:
        yield answer
        answer = arm.ask("train on", limit_seconds, seconds=PIECE_SECONDS)
    if not answer["steps"]:
        raise ArmFailed(arm.name, Outcome.NOTHING_RAN, "not one optimizer step was taken")
    yield answer


class Pairing:
    """The arms of the baseline and of the plan. They live on, so that compiling and the like are paid once, and run one
    at a time; where memory does not hold both, each is ended before the other one begins."""

    def __init__(self, arms: Arms, plan: Plan, limit_seconds: float) -> None:
        self._sides = Side(arms, PLAIN, Plan(), limit_seconds), Side(arms, PLANNED, plan, limit_seconds)
        self._one_at_a_time = False

    def __enter__(self) -> Pairing:
        return self

    def __exit__(self, *exception: object) -> None:
        for side in self._sides:
            side.end()

    def planned_run(self) -> PlannedRun:
        return self._sides[0].planned_run()

    def pairs(self, seeds: Sequence[int], steps: int | None, metric: str | None, watch: Watch) -> Generator[Pair]:
        """Train them one after the other, as long as more are asked for.

        steps: None for the whole run; metric: of the evaluation at the end, None for none.
        """
        planned = self.planned_run().steps
        length = planned if steps is None else min(steps, planned or steps)
        done, whole = 0, 2 * len(seeds) * (length or 0)
        for number, seed in enumerate(seeds):
            found: dict[str, Trained | ArmFailed] = {}
            for side in self._sides if number % 2 == 0 else reversed(self._sides):
                before = done

                def progress(steps_done: int, before: int = before) -> None:
                    watch(before + steps_done, whole)

                found[side.name] = self._train(side, seed, steps, metric, progress)
                done += length or 0
                watch(done, whole)
            yield Pair(seed=seed, plain=found[PLAIN], planned=found[PLANNED])

    def _train(
        self, side: Side, seed: int, steps: int | None, metric: str | None, progress: Callable[[int], None]
    ) -> Trained | ArmFailed:
        (other,) = (each for each in self._sides if each is not side)
        try:
            try:
                return side.train(seed, steps, metric, progress)
            except ArmFailed as failure:
                if failure.outcome is not Outcome.OUT_OF_MEMORY or not other.lives:
                    raise
            self._one_at_a_time = True
            other.end()
            return side.train(seed, steps, metric, progress)
        except ArmFailed as failure:
            return failure
        finally:
            if self._one_at_a_time:
                side.end()


@dataclass(slots=True)
class Side:
    """One arm, started when it is first needed, and again after it failed or was ended."""

    arms: Arms
    name: str
    plan: Plan
    limit_seconds: float
    _arm: Arm | None = None
    _open: ExitStack = field(default_factory=ExitStack)

    @property
    def lives(self) -> bool:
        return self._arm is not None

    def planned_run(self) -> PlannedRun:
        return PlannedRun(**self._started().ask("planned run", self.limit_seconds))

    def train(self, seed: int, steps: int | None, metric: str | None, progress: Callable[[int], None]) -> Trained:
        """Raises ArmFailed, and has ended the arm then."""
        losses, results = list[float](), dict[str, float]()
        try:
            for answer in pieces(self._started(), self.limit_seconds, seed=seed, steps=steps, metric=metric):
                losses += answer["losses"]
                progress(len(losses))
                results = answer["results"]
        except ArmFailed:
            self.end()
            raise
        return Trained(losses=tuple(losses), results=results)

    def end(self) -> None:
        self._arm = None
        self._open.close()

    def _started(self) -> Arm:
        if self._arm is None:
            self._arm = self._open.enter_context(self.arms.start(self.name, self.plan))
        return self._arm
