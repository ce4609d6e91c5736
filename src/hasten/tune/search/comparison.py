"""One heat: several plans beside the plan that they are to beat, window by window in turns.

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
from functools import partial
from statistics import median, stdev

from hasten.measure.loss_equivalence import critical
from hasten.measure.paired_timing import LEAST_PAIRS, TAIL, early_speedup
from hasten.tune.search.compared_arm import Entry, Runner
from hasten.tune.search.objective import WORTH_SEEING, Length, Seen, paired_totals
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

LOOKS = (3, 5, 8)  # rounds after which those whose result is known go
ROUNDS_OF_AN_ARM, ROUNDS_OF_A_CONTROL = LOOKS[1:]  # after which most of them are gone
ENOUGH = 5  # pairs, whose spread can be believed
NORMAL_DEVIATION = 1.4826  # standard deviation of a normal distribution, in its median deviations
CLEAR = 1.05  # a speed-up that is surely above this needs no more windows


@dataclass(frozen=True, kw_only=True, slots=True)
class Pace:
    """steps: of a window; rounds: in all; evaluations: rounds that also evaluate, of which the first says what is paid
    once; looks: see LOOKS; known: whether an arm goes at a look, by its ratios; over: whether all go, by those of one,
    None for never; resident: whether all arms fit into memory beside each other; control_rounds: after which controls
    go as well, None for the last one, also where nobody else is left; starts: processes that a resident arm lives in
    one after the other: some differ by a few per cent from others of the same code, for as long as they live.
    """

    steps: int
    rounds: int = LEAST_PAIRS
    evaluations: int = 0
    looks: tuple[int, ...] = LOOKS
    known: Callable[[Sequence[float]], bool] = field(default_factory=lambda: is_known)
    over: Callable[[Sequence[float]], bool] | None = None
    resident: bool = True
    control_rounds: int | None = ENOUGH
    starts: int = 1


@dataclass(frozen=True, kw_only=True, slots=True)
class Outcome:
    """What a heat gave: the base's windows, and by the name of each entry what was seen of it or how it failed.

    early: name -> its ratios, for those that left before the last round; their windows are fewer than the base's.
    over: whether all of them had to leave, as Pace.over said of one.
    """

    base: Seen
    seen: dict[str, Seen]
    failed: dict[str, ArmFailed]
    early: dict[str, tuple[float, ...]]
    losses: dict[str, tuple[float, ...]]
    memory: dict[str, tuple[int, ...]]
    over: bool = False


Watch = Callable[[int, int, dict[str, float]], None]
"""(rounds done, rounds in all, name -> ratio so far)"""


def run_heat(arms: Arms, base: Entry, entries: Sequence[Entry], pace: Pace, length: Length, watch: Watch) -> Outcome:
    """Raises ArmFailed when the base fails."""
    with ExitStack() as alive:
        heat = _Heat(arms, base, entries, pace, length, alive)
        for turn in range(pace.rounds):
            heat.round(turn)
            watch(turn + 1, pace.rounds, {name: median(found) for name, found in heat.ratios().items()})
            if turn + 1 in pace.looks:
                heat.look()
            if not heat.running:
                break
        return heat.outcome()


class _Heat:
    """first: the base's runner; running, gone: those of the entries that are still in it, and that left early."""

    def __init__(
        self, arms: Arms, base: Entry, entries: Sequence[Entry], pace: Pace, length: Length, alive: ExitStack
    ) -> None:
        self._arms, self.pace, self.length, self.over = arms, pace, length, False
        self.failed, self.early = dict[str, ArmFailed](), dict[str, tuple[float, ...]]()
        self.first, *others = (
            Runner(entry=entry, arms=arms, steps=pace.steps, resident=pace.resident) for entry in (base, *entries)
        )
        self.running, self.gone = {runner.entry.name: runner for runner in others}, dict[str, Runner]()
        for runner in (self.first, *others):
            alive.callback(runner.end)
            if pace.resident:
                self._undisturbed([runner], partial(self._try, runner, Runner.warm_up))

    def round(self, turn: int) -> None:
        """One window for each."""
        order = [self.first, *self.running.values()]
        if turn and self.pace.resident and turn % math.ceil(self.pace.rounds / self.pace.starts) == 0:
            for runner in order:
                self._undisturbed([runner], partial(self._try, runner, Runner.warm_up))
            order = [self.first, *self.running.values()]
        always = any(runner.entry.same_steps for runner in order)

        windows = list[Callable[[], object]]()
        for runner in order if turn % 2 == 0 else reversed(order):
            asked = turn < self.pace.evaluations or runner.entry.same_steps or (always and runner is self.first)
            windows.append(partial(self._try, runner, partial(Runner.measure, evaluates=asked)))
        self._undisturbed(order, *windows)

    def look(self) -> None:
        """Let those go whose result is known; all, when nobody but controls would be left."""
        ratios, rounds = self.ratios(), len(self.first.windows)
        candidates = [name for name, runner in self.running.items() if not runner.entry.stays]
        known, until = [name for name in candidates if self._knows(name, ratios[name])], self.pace.control_rounds
        if (over := self.pace.over) is not None and any(over(ratios[name]) for name in candidates):
            known, self.over = list(self.running), True
        elif rounds < self.pace.rounds and until is not None and (rounds >= until or known == candidates):
            known += [name for name in self.running if name not in candidates]
        if not known:
            return
        self._measure_turns([self.first, *(self.running[name] for name in known)])
        for name in known:
            if name in self.running and name not in self.failed:
                self.early[name], self.gone[name] = self._ratios_of(self.running[name]), self.running.pop(name)
                self.gone[name].end()

    def _knows(self, name: str, ratios: Sequence[float]) -> bool:
        return (self.running[name].entry.known or self.pace.known)(ratios)

    def ratios(self) -> dict[str, tuple[float, ...]]:
        return {name: self._ratios_of(runner) for name, runner in self.running.items()}

    def outcome(self) -> Outcome:
        self._measure_turns([self.first, *self.running.values()])
        everyone = {**self.running, **self.gone}
        all_losses = {self.first.entry.name: self.first, **everyone}
        return Outcome(
            base=self.first.seen(),
            seen={name: runner.seen(self.first) for name, runner in everyone.items()},
            failed=self.failed,
            early=self.early,
            losses={name: runner.losses for name, runner in all_losses.items()},
            memory={name: tuple(runner.memory) for name, runner in all_losses.items()},
            over=self.over,
        )

    def _measure_turns(self, runners: Sequence[Runner]) -> None:
        if self.length.epochs > 1:
            for runner in runners:
                self._undisturbed([runner], partial(self._try, runner, Runner.measure_turn))

    def _undisturbed(self, runners: Sequence[Runner], *do: Callable[[], object]) -> None:
        """Raises NotMeasurable where other programs never leave the processor to them."""
        marks = [runner.marked() for runner in runners]

        def undo() -> None:
            for runner, mark in zip(runners, marks, strict=True):
                runner.back_to(mark)

        self._arms.other_programs.all_undisturbed(do, undo)

    def _ratios_of(self, runner: Runner) -> tuple[float, ...]:
        pairs = zip(*paired_totals(self.first.seen(), runner.seen(self.first), self.length), strict=True)
        return tuple(before.seconds / after.seconds for before, after in pairs)

    def _try(self, runner: Runner, do: Callable[[Runner], object]) -> None:
        """A runner that fails leaves; the base's failure is passed on."""
        if runner.entry.name in self.failed:
            return
        try:
            do(runner)
        except ArmFailed as failure:
            if runner is self.first:
                raise
            self.failed[runner.entry.name] = failure
            del self.running[runner.entry.name]


def is_known(ratios: Sequence[float]) -> bool:
    """Whether the last round would say the same: clearly faster, not worth seeing, or out of reach.

    Out of reach is a gain that would not be sure with all pairs, not even if the median rose until then by the standard
    error of what is still to come (conditional power; Lan, Simon and Halperin 1982). What the last round asks for is an
    interval of the median, which a few disturbed pairs hardly widen, so the spread that it is expected to have is by
    the median deviation as well (Hampel 1974).
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
