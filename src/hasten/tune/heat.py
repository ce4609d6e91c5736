"""One heat: several plans beside the plan that they are to beat, all alive at once, window by window in turns.

Every round gives each arm one window, and every other round goes backwards. All are compared with the same windows of
the base, so it is measured once however many take part. At some rounds the heat is looked at, and an arm goes whose
result is known: one that is clearly faster, one that is not, and one that can no longer come to be so by the last
round. The time is for those in between.

Looking early makes false wins likelier, the more so the more often one looks. What is won here is therefore no result:
it is a reason to measure it once more, on windows of its own that nobody looks at before they are all there
(final.py). Who leaves as no faster can only be missed.

An arm that fails leaves the heat alone. When the base fails, the heat is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import mean, median, stdev

from hasten.facts.choice import Speedup
from hasten.facts.plan import Plan
from hasten.measure.curves import critical
from hasten.measure.paired import LEAST_PAIRS, Window
from hasten.tune.arms import Arm, Arms
from hasten.tune.fate import ArmFailed
from hasten.tune.objective import WORTH_SEEING, Length, Seen, one_off, paired_totals

LOOKS = (3, 5, 8)  # rounds after which those whose result is known go
ENOUGH = 5  # pairs, whose spread can be believed
CLEAR = 1.05  # a speed-up that is surely above this needs no more windows
WARM_UP_STEPS = 2
TAIL = 0.025  # beyond each end of a 95 % interval


@dataclass(frozen=True, kw_only=True, slots=True)
class Entry:
    """One plan in a heat. stays: it is measured to the end whatever it looks like, as a control is."""

    name: str
    plan: Plan
    stays: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """steps: of a window; rounds: in all; evaluations: rounds that also evaluate; looks: see LOOKS."""

    steps: int
    rounds: int = LEAST_PAIRS
    evaluations: int = 0
    looks: tuple[int, ...] = LOOKS


@dataclass(slots=True)
class Runner:
    """One arm in a heat and what was seen of it so far."""

    entry: Entry
    arm: Arm
    warm_up: Window
    windows: list[Window] = field(default_factory=list[Window])
    evaluations: list[float] = field(default_factory=list[float])
    memory: list[int] = field(default_factory=list[int])
    unbroken: tuple[float, ...] = ()  # losses from its first step on, where its run was begun anew later

    def seen(self) -> Seen:
        step = median(window.seconds_per_step for window in self.windows)
        return Seen(
            windows=tuple(self.windows),
            one_off=one_off(self.arm.build_seconds, self.arm.first_turn, self.warm_up, step),
            turns=tuple(self.arm.turns),
            evaluations=tuple(self.evaluations),
            peak_bytes=max(self.memory, default=0),
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a heat gave: the base's windows, and by the name of each entry what was seen of it or how it failed.

    early: name -> its ratios, for those that left before the last round; their windows are fewer than the base's.
    """

    base: Seen
    seen: dict[str, Seen]
    failed: dict[str, ArmFailed]
    early: dict[str, tuple[float, ...]]
    losses: dict[str, tuple[float, ...]]
    memory: dict[str, tuple[int, ...]]


Watch = Callable[[int, int, dict[str, float]], None]
"""(rounds done, rounds in all, name -> ratio so far)"""


def run_heat(arms: Arms, base: Entry, entries: Sequence[Entry], pace: Pace, length: Length, watch: Watch) -> Outcome:
    """Raises ArmFailed when the base fails."""
    failed, early, gone = dict[str, ArmFailed](), dict[str, tuple[float, ...]](), dict[str, Runner]()

    def turn_of(runner: Runner) -> None:
        if length.epochs > 1 and not runner.arm.turns:
            runner.unbroken = tuple(runner.arm.losses)  # its next window begins the run anew
            runner.arm.turns.append(runner.arm.ask("turn")["seconds"])

    with ExitStack() as alive:
        first = _started(arms, base, alive)
        running: dict[str, Runner] = {}
        for entry in entries:
            try:
                running[entry.name] = _started(arms, entry, alive)
            except ArmFailed as failure:
                failed[entry.name] = failure
        for runner in [first, *running.values()]:
            _try(runner, first, running, failed, lambda runner: runner.arm.window(pace.steps))  # the last of warming up
        for turn in range(pace.rounds):
            _round(turn, first, running, pace, failed)
            ratios = {name: _ratios(first, runner, length) for name, runner in running.items()}
            watch(turn + 1, pace.rounds, {name: median(found) for name, found in ratios.items()})
            if turn + 1 in pace.looks:
                known = [name for name, found in ratios.items() if not running[name].entry.stays and is_known(found)]
                if turn + 1 < pace.rounds and all(name in known or running[name].entry.stays for name in running):
                    known = [*running]
                turned = [first, *(running[name] for name in known)] if known else []
                for runner in turned:
                    _try(runner, first, running, failed, turn_of)
                for name in running.keys() & known:
                    early[name], gone[name] = _ratios(first, running[name], length), running.pop(name)
                    gone[name].arm.end()
            if not running:
                break
        for runner in [first, *running.values()]:
            _try(runner, first, running, failed, turn_of)
        everyone = {base.name: first, **running, **gone}
        return Outcome(
            base=first.seen(),
            seen={name: runner.seen() for name, runner in everyone.items() if runner is not first},
            failed=failed,
            early=early,
            losses={name: runner.unbroken or tuple(runner.arm.losses) for name, runner in everyone.items()},
            memory={name: tuple(runner.memory) for name, runner in everyone.items()},
        )


def is_known(ratios: Sequence[float]) -> bool:
    """Whether the last round would say the same: clearly faster, not worth seeing, or out of reach.

    Out of reach is a gain that would not be sure with all pairs, not even if the median rose until then by the standard
    error of what is still to come (conditional power; Lan, Simon and Halperin 1982).
    """
    found, logs = early_speedup(ratios), [math.log(ratio) for ratio in ratios]
    if found.low > CLEAR or found.high < WORTH_SEEING:
        return True
    spread, pairs = stdev(logs), len(logs)
    if pairs < ENOUGH:
        return False
    rise = spread * math.sqrt(max(1 / pairs - 1 / LEAST_PAIRS, 0.0))
    needed = max(critical(LEAST_PAIRS, TAIL) * spread / math.sqrt(LEAST_PAIRS), math.log(WORTH_SEEING))
    return median(logs) + rise < needed


def early_speedup(ratios: Sequence[float]) -> Speedup:
    """Of few pairs: the geometric mean and its 95 % interval by Student's t, which takes log-ratios for normal."""
    logs = [math.log(ratio) for ratio in ratios]
    reach = critical(len(logs), TAIL) * stdev(logs) / math.sqrt(len(logs))
    low, middle, high = (math.exp(mean(logs) + side * reach) for side in (-1, 0, 1))
    return Speedup(ratio=middle, low=low, high=high, pairs=len(logs))


def _started(arms: Arms, entry: Entry, alive: ExitStack) -> Runner:
    arm = alive.enter_context(arms.start(entry.name, entry.plan))
    return Runner(entry=entry, arm=arm, warm_up=arm.window(WARM_UP_STEPS))


def _round(turn: int, base: Runner, running: dict[str, Runner], pace: Pace, failed: dict[str, ArmFailed]) -> None:
    """One window for each."""

    def measure(runner: Runner) -> None:
        runner.windows.append(runner.arm.window(pace.steps))
        runner.memory.append(runner.arm.peak_bytes)
        if turn < pace.evaluations:
            runner.evaluations.append(runner.arm.ask("evaluate")["seconds"])

    order = [base, *running.values()]
    for runner in order if turn % 2 == 0 else reversed(order):
        _try(runner, base, running, failed, measure)


def _try(
    runner: Runner,
    base: Runner,
    running: dict[str, Runner],
    failed: dict[str, ArmFailed],
    do: Callable[[Runner], object],
) -> None:
    """A runner that fails leaves; the base's failure is passed on."""
    try:
        do(runner)
    except ArmFailed as failure:
        if runner is base:
            raise
        failed[runner.entry.name] = failure
        del running[runner.entry.name]


def _ratios(base: Runner, runner: Runner, length: Length) -> tuple[float, ...]:
    pairs = zip(*paired_totals(base.seen(), runner.seen(), length), strict=True)
    return tuple(before.seconds / after.seconds for before, after in pairs)
