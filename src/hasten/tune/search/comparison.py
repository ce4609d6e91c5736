"""One comparison: several plans beside the plan that they are to beat, in interleaved windows.

In every repeat each arm runs one window, and every other repeat runs backwards. At some repeats the arms whose result
is known are dropped. Checking early makes false wins likelier, so a win here is only a reason to measure the choice
once more, on windows that are not checked early (confirmation.py). An arm that fails leaves the comparison alone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from statistics import median, stdev

from hasten.measure.loss_equivalence import critical
from hasten.measure.paired_timing import LEAST_PAIRS, TAIL, early_speedup
from hasten.tune.search.compared_arm import ComparedArm, Entry
from hasten.tune.search.objective import WORTH_SEEING, Measured, RunLength, paired_totals
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

CHECKS = (3, 5, 8)  # repeats after which arms whose result is known are dropped
REPEATS_OF_AN_ARM, REPEATS_OF_A_CONTROL = CHECKS[1:]  # after which most of them are dropped
ENOUGH = 5  # pairs, from which their spread is reliable
NORMAL_DEVIATION = 1.4826  # standard deviation of a normal distribution, in its median deviations
CLEAR = 1.05  # a speed-up that is significantly above this needs no more windows


@dataclass(frozen=True, kw_only=True, slots=True)
class ComparisonSettings:
    """steps: of a window; repeats: in all; evaluations: repeats that also evaluate, the first of which gives what is
    paid once; checks: see CHECKS; is_known: whether an arm is dropped at a check, by its ratios; ends_all: whether all
    arms are, by the ratios of one, None for never; resident: whether all arms fit into memory beside each other;
    control_repeats: after which controls are dropped as well, None for the last one, also where no other arm is left;
    starts: processes that a resident arm lives in one after the other: two processes of the same code can differ by a
    few per cent for as long as they live.
    """

    steps: int
    repeats: int = LEAST_PAIRS
    evaluations: int = 0
    checks: tuple[int, ...] = CHECKS
    is_known: Callable[[Sequence[float]], bool] = field(default_factory=lambda: is_known)
    ends_all: Callable[[Sequence[float]], bool] | None = None
    resident: bool = True
    control_repeats: int | None = ENOUGH
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
    losses: dict[str, tuple[float, ...]]


Watch = Callable[[int, int, dict[str, float]], None]
"""(repeats done, repeats in all, name -> ratio so far)"""


def compare_arms(
    arms: Arms, base: Entry, entries: Sequence[Entry], settings: ComparisonSettings, length: RunLength, watch: Watch
) -> Compared:
    """Raises ArmFailed when the base fails, and NotMeasurable where other programs never leave the processor to it."""
    with ExitStack() as alive:
        comparison = _Comparison(arms, base, entries, settings, length, alive)
        for number in range(settings.repeats):
            comparison.repeat(number)
            ratios = {name: median(found) for name, found in comparison.ratios().items()}
            watch(number + 1, settings.repeats, ratios)
            if number + 1 in settings.checks:
                comparison.check()
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
            if settings.resident:
                self._undisturbed([arm], partial(self._try, arm, ComparedArm.warm_up))

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
        known = [name for name in candidates if self._is_known(name, ratios[name])]
        ends_all, until = self._settings.ends_all, self._settings.control_repeats
        if ends_all is not None and any(ends_all(ratios[name]) for name in candidates):
            known = list(self.running)
        elif repeats < self._settings.repeats and until is not None and (repeats >= until or known == candidates):
            known += [name for name in self.running if name not in candidates]
        if not known:
            return
        self._measure_turns([self.base, *(self.running[name] for name in known)])
        for name in known:
            if name in self.running and name not in self._failed:
                self._early[name], self.dropped[name] = self._ratios_of(self.running[name]), self.running.pop(name)
                self.dropped[name].end()

    def _is_known(self, name: str, ratios: Sequence[float]) -> bool:
        return (self.running[name].entry.is_known or self._settings.is_known)(ratios)

    def ratios(self) -> dict[str, tuple[float, ...]]:
        return {name: self._ratios_of(arm) for name, arm in self.running.items()}

    def result(self) -> Compared:
        self._measure_turns([self.base, *self.running.values()])
        entries = {**self.running, **self.dropped}
        everyone = {self.base.entry.name: self.base, **entries}
        return Compared(
            base=self.base.measured(),
            measured={name: arm.measured(self.base) for name, arm in entries.items()},
            failed=self._failed,
            early=self._early,
            losses={name: arm.losses for name, arm in everyone.items()},
        )

    def _measure_turns(self, arms: Sequence[ComparedArm]) -> None:
        if self._length.epochs > 1:
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
