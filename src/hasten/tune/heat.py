"""One heat: several plans beside the plan that they are to beat, all alive at once, window by window in turns.

Every round gives each arm one window, and every other round goes backwards. All are compared with the same windows of
the base, so it is measured once however many take part. At some rounds the heat is looked at, and an arm that is
clearly no faster goes: most choices lose, and the time is for the few that may not.

Looking early at the losers is safe and at the winners it is not. Whoever leaves can only be missed, so dropping early
raises no false win; whoever stays is measured to the end, and what it wins here is only a reason to confirm it on
windows of its own (final.py). So an arm's result is worth something only where it has all its windows.

An arm that fails leaves the heat alone. When the base fails, the heat is over.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import mean, median, stdev

from hasten.facts.plan import Plan
from hasten.measure.paired import LEAST_PAIRS, Window
from hasten.tune.arms import Arm, Arms
from hasten.tune.fate import ArmFailed
from hasten.tune.objective import WORTH_SEEING, Length, Seen, one_off, paired_totals

LOOKS = (3, 5, 8)  # rounds after which those that are no faster go
ENOUGH = 5  # pairs, whose median alone decides whether the next windows are worth their time
WARM_UP_STEPS = 2
# Student's 97.5 % quantile by the number of pairs at a look.
_CRITICAL = {3: 4.303, 5: 2.776, 8: 2.365}


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

    dropped: name -> its ratios so far, for those that left early.
    """

    base: Seen
    seen: dict[str, Seen]
    failed: dict[str, ArmFailed]
    dropped: dict[str, tuple[float, ...]]
    losses: dict[str, tuple[float, ...]]
    memory: dict[str, tuple[int, ...]]


Watch = Callable[[int, int, dict[str, float]], None]
"""(rounds done, rounds in all, name -> ratio so far)"""


def run_heat(arms: Arms, base: Entry, entries: Sequence[Entry], pace: Pace, length: Length, watch: Watch) -> Outcome:
    """Raises ArmFailed when the base fails."""
    failed, dropped = dict[str, ArmFailed](), dict[str, tuple[float, ...]]()
    with ExitStack() as alive:
        first = _started(arms, base, alive)
        running: dict[str, Runner] = {}
        for entry in entries:
            try:
                running[entry.name] = _started(arms, entry, alive)
            except ArmFailed as failure:
                failed[entry.name] = failure
        for turn in range(pace.rounds):
            _round(turn, first, running, pace, failed)
            ratios = {name: _ratios(first, runner, length) for name, runner in running.items()}
            watch(turn + 1, pace.rounds, {name: median(found) for name, found in ratios.items()})
            if turn + 1 in pace.looks:
                for name, found in ratios.items():
                    if not running[name].entry.stays and no_faster(found):
                        dropped[name] = found
                        running.pop(name).arm.end()
            if not running:
                break
        everyone = {base.name: first, **running}
        for runner in everyone.values():
            if length.epochs > 1 and not runner.arm.turns:
                runner.arm.turns.append(runner.arm.ask("turn")["seconds"])
        return Outcome(
            base=first.seen(),
            seen={name: runner.seen() for name, runner in running.items()},
            failed=failed,
            dropped=dropped,
            losses={name: tuple(runner.arm.losses) for name, runner in everyone.items()},
            memory={name: tuple(runner.memory) for name, runner in everyone.items()},
        )


def no_faster(ratios: Sequence[float]) -> bool:
    """Whether a speed-up worth seeing is above the 95 % interval (Student's, of the log-ratios), or, from ENOUGH pairs
    on, the median is below half of it."""
    logs = [math.log(ratio) for ratio in ratios]
    if len(logs) >= ENOUGH and median(logs) < math.log(WORTH_SEEING) / 2:
        return True
    reach = _CRITICAL[len(logs)] * stdev(logs) / math.sqrt(len(logs))
    return mean(logs) + reach < math.log(WORTH_SEEING)


def _started(arms: Arms, entry: Entry, alive: ExitStack) -> Runner:
    arm = alive.enter_context(arms.start(entry.name, entry.plan))
    return Runner(entry=entry, arm=arm, warm_up=arm.window(WARM_UP_STEPS))


def _round(turn: int, base: Runner, running: dict[str, Runner], pace: Pace, failed: dict[str, ArmFailed]) -> None:
    """One window for each. A runner that fails leaves; the base's failure is passed on."""
    order = [base, *running.values()]
    for runner in order if turn % 2 == 0 else reversed(order):
        try:
            runner.windows.append(runner.arm.window(pace.steps))
            runner.memory.append(runner.arm.peak_bytes)
            if turn < pace.evaluations:
                runner.evaluations.append(runner.arm.ask("evaluate")["seconds"])
        except ArmFailed as failure:
            if runner is base:
                raise
            failed[runner.entry.name] = failure
            del running[runner.entry.name]


def _ratios(base: Runner, runner: Runner, length: Length) -> tuple[float, ...]:
    pairs = zip(*paired_totals(base.seen(), runner.seen(), length), strict=True)
    return tuple(before.seconds / after.seconds for before, after in pairs)
