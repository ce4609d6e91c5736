"""Trains pairs of runs from the same seeds: the plain job's and the planned one's.

Both runs of a pair have the same first weights and the same order of samples, and are whole runs of the job or begin
as one (curve.py). Which of them is trained first changes from pair to pair. A run that fails fails alone, and its arm
is started anew for the next pair.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

from hasten.facts.plan import Plan
from hasten.facts.trials import Numbers
from hasten.tune.trials.arms import Arm, Arms
from hasten.tune.trials.trial_outcome import ArmFailed, Fate

PLAIN, PLANNED = "plain", "planned"
PIECE_SECONDS = 1.0  # of training between two answers of an arm, so that progress can be shown

Watch = Callable[[int, int], None]
"""(optimizer steps done, of all runs), as often as an arm answers; of 0 where the data does not tell how many."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """steps: of the whole run, None where the data does not tell; seed: the job's; metrics: of an evaluation -> whether
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


def nobody(done: int, whole: int) -> None:
    """Watches, and tells nobody."""


def losses_of(side: Trained | ArmFailed) -> Numbers:
    """Raises the ArmFailed that came instead."""
    return trained(side).losses


def trained(side: Trained | ArmFailed) -> Trained:
    """Raises the ArmFailed that came instead."""
    if isinstance(side, ArmFailed):
        raise side
    return side


class Pairing:
    """The plain arm and the planned one. They stay, so that compiling and the like are paid once, and run in turns;
    where memory does not hold both, each is ended before the other one begins."""

    def __init__(self, arms: Arms, plan: Plan, limit_seconds: float) -> None:
        self._sides = Side(arms, PLAIN, Plan(), limit_seconds), Side(arms, PLANNED, plan, limit_seconds)
        self._alone = False

    def __enter__(self) -> Pairing:
        return self

    def __exit__(self, *exception: object) -> None:
        for side in self._sides:
            side.end()

    def look(self) -> PlannedRun:
        return self._sides[0].look()

    def pairs(self, seeds: Sequence[int], steps: int | None, metric: str | None, watch: Watch) -> Generator[Pair]:
        """Train them one after the other, until nobody asks for more.

        steps: None for the whole run; metric: of the evaluation at the end, None for none.
        """
        planned = self.look().steps
        length = planned if steps is None else min(steps, planned or steps)
        done, whole = 0, 2 * len(seeds) * (length or 0)
        for number, seed in enumerate(seeds):
            found: dict[str, Trained | ArmFailed] = {}
            for side in self._sides if number % 2 == 0 else reversed(self._sides):
                before = done

                def tell(steps_done: int, before: int = before) -> None:
                    watch(before + steps_done, whole)

                found[side.name] = self._train(side, seed, steps, metric, tell)
                done += length or 0
                watch(done, whole)
            yield Pair(seed=seed, plain=found[PLAIN], planned=found[PLANNED])

    def _train(
        self, side: Side, seed: int, steps: int | None, metric: str | None, tell: Callable[[int], None]
    ) -> Trained | ArmFailed:
        (other,) = (each for each in self._sides if each is not side)
        try:
            try:
                return side.train(seed, steps, metric, tell)
            except ArmFailed as failure:
                if failure.fate is not Fate.OUT_OF_MEMORY or not other.lives:
                    raise
            self._alone = True
            other.end()
            return side.train(seed, steps, metric, tell)
        except ArmFailed as failure:
            return failure
        finally:
            if self._alone:
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

    def look(self) -> PlannedRun:
        return PlannedRun(**self._started().ask("planned run", self.limit_seconds))

    def train(self, seed: int, steps: int | None, metric: str | None, tell: Callable[[int], None]) -> Trained:
        """Raises ArmFailed, and the arm is gone then."""
        try:
            arm, losses = self._started(), list[float]()
            asked = {"seed": seed, "steps": steps, "metric": metric, "seconds": PIECE_SECONDS}
            answer = arm.ask("train", self.limit_seconds, **asked)
            while True:
                losses += answer["losses"]
                if answer["results"] is not None:
                    break
                tell(len(losses))
                answer = arm.ask("train on", self.limit_seconds, seconds=PIECE_SECONDS)
        except ArmFailed:
            self.end()
            raise
        if not losses:
            self.end()
            raise ArmFailed(self.name, Fate.NOTHING_RAN, "not one optimizer step was taken")
        return Trained(losses=tuple(losses), results=answer["results"])

    def end(self) -> None:
        self._arm = None
        self._open.close()

    def _started(self) -> Arm:
        if self._arm is None:
            self._arm = self._open.enter_context(self.arms.start(self.name, self.plan))
        return self._arm
