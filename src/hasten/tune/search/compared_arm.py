"""One arm in a comparison, and what was measured of it so far.

It lives between its windows as long as all arms of a comparison fit into memory beside each other. Where they do not,
it ends after each of its windows and starts again for the next one. What a process pays once is separated from what it
pays for every step and every evaluation.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from statistics import median
from typing import Any

from hasten.facts.plan import Plan
from hasten.measure.paired_timing import Window
from hasten.tune.search.objective import Measured, one_off
from hasten.tune.trials.arms import Arm, Arms
from hasten.tune.trials.trial import EVALUATION_SECONDS

WARM_UP_STEPS, WARM_UP_WINDOWS = 1, 2  # before the first window that is counted; windows of short steps only
WINDOW_SECONDS = 0.2  # of one window, where a step is not longer


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One plan in a comparison.

    stays: it is measured whatever its ratios are, as a control is. same_steps: its steps are the base's, so it takes
    the base's windows, and only its evaluations are measured, one in every repeat. is_known: whether it is dropped at a
    check, by its ratios; None for the comparison's own rule.
    """

    name: str
    plan: Plan
    stays: bool = False
    same_steps: bool = False
    is_known: Callable[[Sequence[float]], bool] | None = None


@dataclass(kw_only=True, slots=True)
class ComparedArm:
    """resident: it stays in memory until it is ended. steps: of a window."""

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
        """Begin in a new process, and take the steps that are slower than all later ones. Raises ArmFailed, as all that
        follows does."""
        self.end()
        self._started()
        self._end_unless_resident()

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
        arm = self._started()
        if not self.entry.same_steps:
            self.windows.append(replace(arm.window(self.steps), start=len(self._starts)))
        self.memory.append(arm.peak_bytes)
        if evaluates:
            seconds = arm.ask("evaluate", seconds=EVALUATION_SECONDS)["seconds"]
            is_first = len(self._cold) < len(self._starts)
            (self._cold if is_first else self.evaluations).append(seconds)
        self._end_unless_resident()

    def measure_turn(self) -> None:
        """The wait for a new epoch's first batch, unless its windows contained one."""
        if self.all_turns or self.entry.same_steps:
            return
        arm = self._started()
        self._keep_losses(arm)  # its next window restarts the run
        self.turns.append(arm.ask("turn")["seconds"])
        self._end_unless_resident()

    @property
    def all_turns(self) -> list[float]:
        return self.turns + (self._arm.turns if self._arm is not None else [])

    @property
    def losses(self) -> tuple[float, ...]:
        """Of its first run, from the first step on."""
        if self._losses is not None:
            return self._losses
        return () if self._arm is None else tuple(self._arm.losses)

    def measured(self, base: ComparedArm | None = None) -> Measured:
        """base: whose windows, start and turns are its own, where its steps are the same."""
        stepped = base if base is not None and self.entry.same_steps else self
        step = median(window.seconds_per_step for window in stepped.windows)
        warm = self.evaluations or self._cold
        cold = max(median(self._cold) - median(warm), 0.0) if self._cold else 0.0
        return Measured(
            windows=tuple(replace(window, arm=self.entry.name) for window in stepped.windows[: len(self.memory)]),
            one_off=cold + median(one_off(*start, step) for start in stepped._starts),
            turns=tuple(stepped.all_turns),
            evaluations=tuple(warm),
            peak_bytes=max(self.memory, default=0),
        )

    def end(self) -> None:
        if self._arm is not None:
            self._keep_losses(self._arm)
            self.turns += self._arm.turns
            self._arm = None
        self._alive.close()

    def _keep_losses(self, arm: Arm) -> None:
        if self._losses is None:
            self._losses = tuple(arm.losses)

    def _end_unless_resident(self) -> None:
        if not self.resident:
            self.end()

    def _started(self) -> Arm:
        if self._arm is not None:
            return self._arm
        arm = self._alive.enter_context(self.arms.start(self.entry.name, self.entry.plan))
        first = arm.window(WARM_UP_STEPS)
        # Of steps so long that a window has one of them, only the first is slower.
        if self.steps > WARM_UP_STEPS and not self.entry.same_steps:
            more = arm.window(WARM_UP_WINDOWS * self.steps)
            first = Window(arm=more.arm, steps=first.steps + more.steps, seconds=first.seconds + more.seconds)
        self._starts.append((arm.build_seconds, arm.first_turn, first))
        self._arm = arm
        return arm
