"""Proves choices by the losses of short runs, from several seeds beside the baseline.

These are choices that claim to leave the statistics of the training alone; and those that claim rounding, where no
gradient of the job can be judged. A loss that falls faster is harm as well: something else is trained than the claim
promises. `hasten prove loss` trains to the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hasten.errors import InvalidMeasurement
from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Curves, Doing, Proven
from hasten.tune.proof.dropping import (
    Answer,
    Asked,
    Choices,
    Dropped,
    claiming,
    listed,
    sort_out,
    without_conflicts,
)
from hasten.tune.proof.loss_proof import paired_curves
from hasten.tune.proof.paired_runs import PLAIN
from hasten.tune.search.candidates import changes_training, plan_of, without
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

SEEDS = 3
FEWEST_STEPS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortRuns:
    """steps: of each; seconds_left: of the search. The first runs of a plan are always trained; half of the seconds
    left may go into finding the choices to drop."""

    first_seed: int
    steps: int
    seconds_left: Callable[[], float]


class ByLosses:
    """Compares plans of one job with it. curves: of the last plan that has passed, or else that has not."""

    def __init__(self, arms: Arms, runs: ShortRuns, report: Callable[[Doing], None]) -> None:
        self._arms, self._runs, self._report = arms, runs, report
        self._asked = Asked(self._compared, lambda: self.has_time)
        self._longest_seconds = 0.0
        self.curves: Curves | None = None

    @property
    def has_time(self) -> bool:
        """Whether there is time for one more plan."""
        return self._longest_seconds < self._runs.seconds_left() / 2

    def prove(self, choices: Choices, unjudged: str | None) -> list[Proven]:
        """One record for each choice that is judged by losses. Those that pass have passed together.

        unjudged: why no gradient of the job can be judged, None where they can.
        """
        claims = (Preserves.STATISTICS,) if unjudged is None else (Preserves.ROUNDING, Preserves.STATISTICS)
        among = claiming(choices, *claims)
        if not among:
            return []
        whole = without(choices, *filter(changes_training, choices))
        found = sort_out(self._asked, whole, among, _drop)
        self.curves = found.answer.curves
        reasons = [(choice, found.answer, found.answer.reason) for choice in found.passed]
        reasons += [(each.choice, each.answer, _why(each)) for each in found.dropped]
        return [answer.of(choice, _with_unjudged(choice, reason, unjudged)) for choice, answer, reason in reasons]

    def _compared(self, choices: Choices) -> Answer:
        begin = time.monotonic()
        try:
            return self._answer(choices)
        finally:
            self._longest_seconds = max(self._longest_seconds, time.monotonic() - begin)

    def _answer(self, choices: Choices) -> Answer:
        runs = self._runs
        seeds = range(runs.first_seed, runs.first_seed + SEEDS)

        def watch(done: int, whole: int) -> None:
            self._report(Doing(what=f"comparing losses over {SEEDS} seeds", done=done, whole=whole))

        def failed(reason: str, *, is_plans: bool) -> Answer:
            reason = f"its losses could not be compared: {reason}"
            return Answer(passes=False, reason=reason, by_losses=True, is_plans=is_plans)

        watch(0, 0)
        try:
            curves = paired_curves(self._arms, plan_of(choices), seeds, max(runs.steps, FEWEST_STEPS), watch)
        except ArmFailed as failure:
            is_plans = failure.arm != PLAIN
            who = "with it the job" if is_plans else "the baseline"
            return failed(f"{who} {failure.reason}", is_plans=is_plans)
        except InvalidMeasurement as invalid:
            return failed(invalid.what, is_plans=False)
        passes, inconclusive = curves.verdict not in ("harmed", "better"), curves.verdict == "inconclusive"
        return Answer(passes=passes, reason=curves.sentence, by_losses=True, inconclusive=inconclusive, curves=curves)


def _drop(asked: Asked, whole: Choices, among: Sequence[Choice]) -> list[Dropped]:
    answer = asked.surely(whole)
    if answer.is_plans:
        return without_conflicts(asked, whole, among)
    return [Dropped(choice=choice, answer=answer) for choice in among]


def _with_unjudged(choice: Choice, reason: str, unjudged: str | None) -> str:
    if choice.preserves is not Preserves.ROUNDING:
        return reason
    return f"{reason}; losses were compared because no gradient of this job can be judged: {unjudged}"


def _why(dropped: Dropped) -> str:
    reason, beside = dropped.answer.reason, listed(dropped.beside)
    if not dropped.blamed:
        return f"fails together with {beside}; which of them is to blame, there was no time to find out: {reason}"
    return f"fails together with {beside}, and the rest passes without it: {reason}" if beside else reason
