"""One arm in a heat, and what was seen of it so far.

It stays alive between its windows, as long as all arms of a heat fit beside each other, and may be asked to go on in
another process. Where they do not fit, it gives its place to the next one after each turn, and is a new process at the
next: the same windows, paid for with a start each.

What a process pays once is told apart from what it pays for every step and every evaluation: the build, the first
batch, what the first windows take beyond those after them, and what the first evaluation takes beyond the others.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any, TypeVar

from hasten.facts.plan import Plan
from hasten.measure.paired_timing import Window
from hasten.tune.search.objective import Seen, one_off
from hasten.tune.trials.arms import Arm, Arms
from hasten.tune.trials.trial import EVALUATION_SECONDS

WARM_UP_STEPS, WARM_UP_WINDOWS = 1, 2  # of short steps both, before the first window that is counted
WINDOW_SECONDS = 0.2  # of one window, where a step is not longer
Answer = TypeVar("Answer")


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One plan in a heat.

    stays: it is measured whatever it looks like, as a control is. same_steps: its steps are the base's, so the windows
    of those are its own, and of it only evaluations are measured, one in every round. known: whether it goes at a look,
    by its ratios; None for what the heat's pace says.
    """

    name: str
    plan: Plan
    stays: bool = False
    same_steps: bool = False
    known: Callable[[Sequence[float]], bool] | None = None


@dataclass(kw_only=True, slots=True)
class Runner:
    """resident: it keeps its place in memory until it is ended. steps: of a window."""

    entry: Entry
    arms: Arms
    steps: int
    resident: bool
    windows: list[Window] = field(default_factory=list[Window])
    evaluations: list[float] = field(default_factory=list[float])  # of warm processes
    turns: list[float] = field(default_factory=list[float])
    memory: list[int] = field(default_factory=list[int])
    _losses: tuple[float, ...] | None = None  # of its first run, once that is over
    _starts: list[tuple[float, float | None, Window]] = field(default_factory=list[tuple[float, float | None, Window]])
    _cold: list[float] = field(default_factory=list[float])  # the first evaluation of each process
    _arm: Arm | None = None
    _alive: ExitStack = field(default_factory=ExitStack)

    def warm_up(self) -> None:
        """Begin in a process of its own, and take the steps that are slower than all later ones. Raises ArmFailed, as
        all that follows does."""
        self.end()
        self._with_arm(lambda arm: None)

    def marked(self) -> tuple[int, ...]:
        """How many of everything were measured so far; for back_to."""
        return tuple(map(len, self._measured))

    def back_to(self, mark: tuple[int, ...]) -> None:
        """Drop what was measured since. The arm stays where it is in its run."""
        for values, count in zip(self._measured, mark, strict=True):
            del values[count:]

    @property
    def _measured(self) -> tuple[list[Any], ...]:
        return self.windows, self.evaluations, self.turns, self.memory, self._starts, self._cold

    def measure(self, *, evaluates: bool) -> None:
        """One window, and one evaluation after it."""

        def measured(arm: Arm) -> None:
            if not self.entry.same_steps:
                self.windows.append(replace(arm.window(self.steps), start=len(self._starts)))
            self.memory.append(arm.peak_bytes)
            if evaluates:
                self._evaluate(arm)

        self._with_arm(measured)

    def _evaluate(self, arm: Arm) -> None:
        seconds = arm.ask("evaluate", seconds=EVALUATION_SECONDS)["seconds"]
        first = len(self._cold) < len(self._starts)
        (self._cold if first else self.evaluations).append(seconds)

    def measure_turn(self) -> None:
        """The wait for a new epoch's first batch, unless its windows have met one."""

        def measured(arm: Arm) -> None:
            self._end_of_run(arm)  # its next window begins the run anew
            self.turns.append(arm.ask("turn")["seconds"])

        if not (self.all_turns or self.entry.same_steps):
            self._with_arm(measured)

    @property
    def all_turns(self) -> list[float]:
        return self.turns + (self._arm.turns if self._arm is not None else [])

    @property
    def losses(self) -> tuple[float, ...]:
        """Of its first run, from the first step on."""
        if self._losses is not None:
            return self._losses
        return () if self._arm is None else tuple(self._arm.losses)

    def seen(self, base: Runner | None = None) -> Seen:
        """base: whose windows, start and turns are its own, where its steps are the same."""
        stepped = base if base is not None and self.entry.same_steps else self
        rounds = len(self.memory)
        step = median(window.seconds_per_step for window in stepped.windows)
        warm = self.evaluations or self._cold
        cold = max(median(self._cold) - median(warm), 0.0) if self._cold else 0.0
        return Seen(
            windows=tuple(replace(window, arm=self.entry.name) for window in stepped.windows[:rounds]),
            one_off=cold + median(one_off(*start, step) for start in stepped._starts),
            turns=tuple(stepped.all_turns),
            evaluations=tuple(warm),
            peak_bytes=max(self.memory, default=0),
        )

    def end(self) -> None:
        if self._arm is not None:
            self._end_of_run(self._arm)
            self.turns += self._arm.turns
            self._arm = None
        self._alive.close()

    def _end_of_run(self, arm: Arm) -> None:
        if self._losses is None:
            self._losses = tuple(arm.losses)

    def _with_arm(self, do: Callable[[Arm], Answer]) -> Answer:
        if self._arm is None:
            self._arm = self._started()
        found = do(self._arm)
        if not self.resident:
            self.end()
        return found

    def _started(self) -> Arm:
        arm = self._alive.enter_context(self.arms.start(self.entry.name, self.entry.plan))
        first = arm.window(WARM_UP_STEPS)
        # Steps so long that a window has one of them are slower in the first alone.
        if self.steps > WARM_UP_STEPS and not self.entry.same_steps:
            more = arm.window(WARM_UP_WINDOWS * self.steps)
            first = Window(arm=more.arm, steps=first.steps + more.steps, seconds=first.seconds + more.seconds)
        self._starts.append((arm.build_seconds, arm.first_turn, first))
        return arm
