"""One comparison: several plans beside the plan that they are to beat, in interleaved windows.

In every repeat each arm runs one window, and every other repeat runs backwards. At some repeats the arms whose result
is known are dropped. Checking early makes false wins likelier, so a win here is only a reason to measure the choice
once more, on windows that are not checked early (confirmation.py). An arm that fails leaves the comparison alone.

An arm lives between its windows as long as all arms of a comparison fit into memory beside each other. Where they do
not, it ends after each of its windows and starts again for the next one. What a process pays once is separated from
what it pays for every step and every evaluation.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median, stdev
from typing import Any

from hasten.facts.plan import Plan
from hasten.measure.loss_equivalence import critical
from hasten.measure.paired_timing import LEAST_PAIRS, TAIL, Window, early_speedup
from hasten.tuning.search.objective import (
    WORTH_SEEING,
    Interruptions,
    Measured,
    RunLength,
    one_off,
    paired_totals,
)
from hasten.tuning.trials.arms import Arm, Arms
from hasten.tuning.trials.trial import EVALUATION_SECONDS
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome

WARM_UP_STEPS, WARM_UP_WINDOWS = 1, 2  # before the first window that is counted; windows of short steps only
WINDOW_SECONDS = 0.2  # of one window, where a step is not longer


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One plan in a comparison.

    stays: it is measured whatever its ratios are, as a control is. same_steps: its steps are the base's, so it takes
    the base's windows, and only its evaluations are measured, one in every repeat. same_turns: so are its turns.
    start_seconds: after which it fails where its process has not taken its first step; None for an arm's usual limit.
    """

    name: str
    plan: Plan
    stays: bool = False
    same_steps: bool = False
    same_turns: bool = False
    start_seconds: float | None = None


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
    interruptions: list[float] = field(default_factory=list[float])
    steps_seen: list[int] = field(default_factory=list[int])  # of each window, what interrupts them included
    memory: list[int] = field(default_factory=list[int])
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
        met = self.turns, self.interruptions, self.steps_seen
        return self.windows, self.evaluations, *met, self.memory, self._starts, self._cold

    def measure(self, *, evaluates: bool) -> None:
        """One window, and one evaluation after it."""
        arm = self._started()
        if not self.entry.same_steps:
            self.windows.append(replace(self._window(arm, self.steps), start=len(self._starts)))
        self.memory.append(arm.peak_bytes)
        if evaluates:
            seconds = arm.ask("evaluate", seconds=EVALUATION_SECONDS)["seconds"]
            is_first = len(self._cold) < len(self._starts)
            (self._cold if is_first else self.evaluations).append(seconds)
        self._end_unless_resident()

    def measure_turn(self) -> None:
        """The wait for a new epoch's first batch, unless its windows contained one."""
        if self.turns or self.entry.same_steps or self.entry.same_turns:
            return
        arm = self._started()
        self.turns.append(arm.ask("turn")["seconds"])
        self._end_unless_resident()

    def measured(self, base: ComparedArm | None = None) -> Measured:
        """base: whose windows, start, turns and interruptions are its own, where its steps are the same; where only its
        turns are, whose turns."""
        stepped = base if base is not None and self.entry.same_steps else self
        step = median(window.seconds_per_step for window in stepped.windows)
        warm = self.evaluations or self._cold
        cold = max(median(self._cold) - median(warm), 0.0) if self._cold else 0.0
        return Measured(
            windows=tuple(replace(window, arm=self.entry.name) for window in stepped.windows[: len(self.memory)]),
            one_off=cold + median(one_off(*start, step) for start in stepped._starts),  # noqa: SLF001  of this class
            turns=tuple(base.turns if base is not None and self.entry.same_turns else stepped.turns),
            interruptions=Interruptions(tuple(stepped.interruptions), sum(stepped.steps_seen)),
            evaluations=tuple(warm),
            peak_bytes=max(self.memory, default=0),
        )

    def end(self) -> None:
        self._arm = None
        self._alive.close()

    def _first_step(self, arm: Arm) -> Window:
        seconds = self.entry.start_seconds
        try:
            return self._window(arm, WARM_UP_STEPS, seconds)
        except ArmFailed as failure:
            if failure.outcome is not Outcome.HUNG or seconds is None:
                raise
            what = f"no first step within {seconds:.0f} s, more than it could save or the search could wait for"
            raise ArmFailed(arm.name, Outcome.LATE, what) from failure

    def _window(self, arm: Arm, steps: int, limit_seconds: float | None = None) -> Window:
        """With the turns and interruptions that it contains."""
        window = arm.window(steps, limit_seconds)
        turns, interruptions, seen = arm.taken_out()
        self.turns += turns
        self.interruptions += interruptions
        self.steps_seen.append(seen)
        return window

    def _end_unless_resident(self) -> None:
        if not self.resident:
            self.end()

    def _started(self) -> Arm:
        if self._arm is not None:
            return self._arm
        arm = self._alive.enter_context(self.arms.start(self.entry.name, self.entry.plan))
        first = self._first_step(arm)
        # Of steps so long that a window has one of them, only the first is slower.
        if self.steps > WARM_UP_STEPS and not self.entry.same_steps:
            more = self._window(arm, WARM_UP_WINDOWS * self.steps)
            first = Window(arm=more.arm, steps=first.steps + more.steps, seconds=first.seconds + more.seconds)
        self._starts.append((arm.build_seconds, arm.first_turn, first))
        self._arm = arm
        return arm


CHECKS = (3, 5, 8)  # repeats after which arms whose result is known are dropped
REPEATS_OF_AN_ARM, REPEATS_OF_A_CONTROL = CHECKS[1:]  # after which most of them are dropped
ENOUGH = 5  # pairs, from which their spread is reliable
NORMAL_DEVIATION = 1.4826  # standard deviation of a normal distribution, in its median deviations
CLEAR = 1.05  # a speed-up that is significantly above this needs no more windows


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonSettings:
    """steps: of a window; repeats: in all; evaluations: repeats that also evaluate, the first of which gives what is
    paid once; checks: see CHECKS; ends_all: whether all arms are dropped at a check, by the ratios of one, None for
    never; seconds: of all repeats, after which all arms are dropped, though not before the first check; resident:
    whether all arms fit into memory beside each other; starts: processes that a resident arm lives in one after the
    other: two processes of the same code can differ by a few per cent for as long as they live.
    """

    steps: int
    repeats: int = LEAST_PAIRS
    evaluations: int = 0
    checks: tuple[int, ...] = CHECKS
    ends_all: Callable[[Sequence[float]], bool] | None = None
    seconds: float = math.inf
    resident: bool = True
    starts: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """The base's measurements, and by the name of each entry what was measured of it or how it failed.

    early: name -> its ratios, for those that were dropped before the last repeat; they have fewer windows than the
    base.
    """

    base: Measured
    measured: dict[str, Measured]
    failed: dict[str, ArmFailed]
    early: dict[str, tuple[float, ...]]


Watch = Callable[[int, int, dict[str, float]], None]
"""(repeats done, repeats in all, name -> ratio so far), also after each start of an arm before the first repeat"""


def compare_arms(
    arms: Arms, base: Entry, entries: Sequence[Entry], settings: ComparisonSettings, length: RunLength, watch: Watch
) -> Compared:
    """Raises ArmFailed when the base fails, and NotMeasurable where other programs never leave the processor to it."""
    with ExitStack() as alive:
        comparison = _Comparison(arms, base, entries, settings, length, alive)
        for _ in comparison.starts():
            watch(0, settings.repeats, {})
        lost_seconds = partial(getattr, arms.other_programs, "lost_seconds")
        ends_at = time.monotonic() + settings.seconds - lost_seconds()
        for number in range(settings.repeats):
            comparison.repeat(number)
            ratios = {name: median(found) for name, found in comparison.ratios().items()}
            watch(number + 1, settings.repeats, ratios)
            if number + 1 in settings.checks:
                comparison.check()
            over = time.monotonic() >= ends_at + lost_seconds()
            if over and CHECKS[0] <= number + 1 < settings.repeats:
                comparison.drop([*comparison.running])
            if not comparison.running:
                break
        return comparison.result()


class _Comparison:
    """base: that all are compared with; running, dropped: of the entries, those that still run, and that were dropped
    early."""

    def __init__(
        self,
        arms: Arms,
        base: Entry,
        entries: Sequence[Entry],
        settings: ComparisonSettings,
        length: RunLength,
        alive: ExitStack,
    ) -> None:
        self._arms, self._settings, self._length = arms, settings, length
        self._failed, self._early = dict[str, ArmFailed](), dict[str, tuple[float, ...]]()
        self.base, *others = (
            ComparedArm(entry=entry, arms=arms, steps=settings.steps, resident=settings.resident)
            for entry in (base, *entries)
        )
        self.running, self.dropped = {arm.entry.name: arm for arm in others}, dict[str, ComparedArm]()
        for arm in (self.base, *others):
            alive.callback(arm.end)

    def starts(self) -> Iterator[None]:
        """Those that stay in memory start, and it yields after each."""
        for arm in [self.base, *self.running.values()] if self._settings.resident else []:
            self._undisturbed([arm], partial(self._try, arm, ComparedArm.warm_up))
            yield

    def repeat(self, number: int) -> None:
        """One window of each arm."""
        settings, order = self._settings, [self.base, *self.running.values()]
        if number and settings.resident and number % math.ceil(settings.repeats / settings.starts) == 0:
            for arm in order:
                self._undisturbed([arm], partial(self._try, arm, ComparedArm.warm_up))
            order = [self.base, *self.running.values()]
        always = any(arm.entry.same_steps for arm in order)
        windows = list[Callable[[], object]]()
        for arm in order if number % 2 == 0 else reversed(order):
            evaluates = number < settings.evaluations or arm.entry.same_steps or (always and arm is self.base)
            windows.append(partial(self._try, arm, partial(ComparedArm.measure, evaluates=evaluates)))
        self._undisturbed(order, *windows)

    def check(self) -> None:
        """Drop those whose result is known; all, when only controls would be left."""
        ratios, repeats = self.ratios(), len(self.base.windows)
        candidates = [name for name, arm in self.running.items() if not arm.entry.stays]
        known = [name for name in candidates if is_known(ratios[name])]
        ends_all = self._settings.ends_all
        if ends_all is not None and any(ends_all(ratios[name]) for name in candidates):
            known = list(self.running)
        elif repeats < self._settings.repeats and (repeats >= ENOUGH or known == candidates):
            known += [name for name in self.running if name not in candidates]
        self.drop(known)

    def drop(self, names: Sequence[str]) -> None:
        """With the ratios that they have."""
        if not names:
            return
        self._measure_turns([self.base, *(self.running[name] for name in names)])
        for name in names:
            if name in self.running and name not in self._failed:
                self._early[name], self.dropped[name] = self._ratios_of(self.running[name]), self.running.pop(name)
                self.dropped[name].end()

    def ratios(self) -> dict[str, tuple[float, ...]]:
        return {name: self._ratios_of(arm) for name, arm in self.running.items()}

    def result(self) -> Compared:
        self._measure_turns([self.base, *self.running.values()])
        entries = {**self.running, **self.dropped}
        return Compared(
            base=self.base.measured(),
            measured={name: arm.measured(self.base) for name, arm in entries.items()},
            failed=self._failed,
            early=self._early,
        )

    def _measure_turns(self, arms: Sequence[ComparedArm]) -> None:
        if self._length.turns:
            for arm in arms:
                self._undisturbed([arm], partial(self._try, arm, ComparedArm.measure_turn))

    def _undisturbed(self, arms: Sequence[ComparedArm], *do: Callable[[], object]) -> None:
        marks = [arm.marked() for arm in arms]

        def undo() -> None:
            for arm, mark in zip(arms, marks, strict=True):
                arm.back_to(mark)

        self._arms.other_programs.all_undisturbed(do, undo)

    def _ratios_of(self, arm: ComparedArm) -> tuple[float, ...]:
        pairs = zip(*paired_totals(self.base.measured(), arm.measured(self.base), self._length), strict=True)
        return tuple(before.seconds / after.seconds for before, after in pairs)

    def _try(self, arm: ComparedArm, do: Callable[[ComparedArm], object]) -> None:
        """An arm that fails leaves; the base's failure is passed on."""
        name = arm.entry.name
        if name in self._failed:
            return
        try:
            do(arm)
        except ArmFailed as failure:
            if arm is self.base:
                raise
            self._failed[name] = failure
            del self.running[name]


def is_known(ratios: Sequence[float]) -> bool:
    """Whether the last repeat would say the same: clearly faster, too little to be seen, or out of reach.

    Out of reach is a gain that would not be significant with all pairs, even if the median rose until then by the
    standard error of what is still to come (conditional power; Lan, Simon and Halperin 1982). The last repeat asks for
    an interval of the median, which a few disturbed pairs hardly widen, so the expected spread is by the median
    deviation as well (Hampel 1974).
    """
    found, logs = early_speedup(ratios), [math.log(ratio) for ratio in ratios]
    if found.low > CLEAR or found.high < WORTH_SEEING:
        return True
    spread, pairs = stdev(logs), len(logs)
    if pairs < ENOUGH:
        return False
    middle, rise = median(logs), spread * math.sqrt(max(1 / pairs - 1 / LEAST_PAIRS, 0.0))
    undisturbed = min(spread, NORMAL_DEVIATION * median(abs(value - middle) for value in logs))
    needed = max(critical(LEAST_PAIRS, TAIL) * undisturbed / math.sqrt(LEAST_PAIRS), math.log(WORTH_SEEING))
    return middle + rise < needed
