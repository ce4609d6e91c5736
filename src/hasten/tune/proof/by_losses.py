"""Choices that are judged by the losses of short runs, from several seeds beside the plain job.

Those that claim to leave the statistics of the training alone are, and those up to rounding of a job whose gradients
nobody can judge, as one that draws random numbers of its own. Short runs show harm that is plain to see, and say how
small a harm they would not have shown. A loss that falls faster is harm as well: whoever trains something else has lost
what the claim promises. `hasten prove loss` trains to the end.

What is trained is the whole plan, but for what claims to change training: that is judged by nothing here. Where it is
harmed, or the plan fails on the way, dropping.py finds who has to go, as far as there is time; who is then neither
cleared nor to blame goes as well, and is told so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from hasten.errors import InvalidMeasurement
from hasten.facts.choice import Choice, Preserves
from hasten.facts.trials import Curves, Doing, Proven
from hasten.tune.proof.by_gradients import Tell, claiming, listed
from hasten.tune.proof.dropping import Asked, Choices, Dropped, without_conflicts
from hasten.tune.proof.loss_proof import paired_curves
from hasten.tune.proof.paired_runs import PLAIN
from hasten.tune.search.candidates import plan_of, without
from hasten.tune.trials.arms import Arms
from hasten.tune.trials.trial_outcome import ArmFailed

SEEDS = 3
FEWEST_STEPS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class ShortRuns:
    """How long they may be. steps: of each; seconds_left: of the time that finding out who is to blame may take half
    of; the first runs of a plan are always trained."""

    first_seed: int
    steps: int
    seconds_left: Callable[[], float]


@dataclass(frozen=True, kw_only=True, slots=True)
class Compared:
    """What short runs of a plan said. curves: None where an arm failed in a way that says nothing of the loss.
    blames_plan: whether another plan could have done better."""

    passes: bool
    reason: str
    curves: Curves | None = None
    blames_plan: bool = True

    @property
    def inconclusive(self) -> bool:
        return self.curves is not None and self.curves.verdict == "inconclusive"


class ByLosses:
    """Compares plans of one job with it. curves: of the last plan that has passed, or else that has not."""

    def __init__(self, arms: Arms, runs: ShortRuns, tell: Tell) -> None:
        self._arms, self._runs, self._tell = arms, runs, tell
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
        whole = without(choices, *(each for each in choices if each.preserves in (None, Preserves.TRAINING)))
        found = self._asked.surely(whole)
        if found.passes:
            dropped = list[Dropped[Compared]]()
        elif found.blames_plan:
            dropped = without_conflicts(self._asked, whole, among)
        else:
            dropped = [Dropped(choice=choice, answer=found) for choice in among]
        kept = without(whole, *(each.choice for each in dropped))
        passed = [choice for choice in among if any(choice is each for each in kept)]
        found = self._asked.surely(kept) if passed else found
        self.curves = found.curves
        return [
            *(_record(choice, True, found.reason, unjudged, found.inconclusive) for choice in passed),
            *(_record(each.choice, False, _why(each), unjudged) for each in dropped),
        ]

    def _compared(self, choices: Choices) -> Compared:
        begin = time.monotonic()
        try:
            return self._answer(choices)
        finally:
            self._longest_seconds = max(self._longest_seconds, time.monotonic() - begin)

    def _answer(self, choices: Choices) -> Compared:
        runs = self._runs
        seeds = range(runs.first_seed, runs.first_seed + SEEDS)

        def watch(done: int, whole: int) -> None:
            self._tell(Doing(what=f"comparing losses over {SEEDS} seeds", done=done, whole=whole))

        watch(0, 0)
        try:
            curves = paired_curves(self._arms, plan_of(choices), seeds, max(runs.steps, FEWEST_STEPS), watch)
        except ArmFailed as failed:
            plain = failed.arm == PLAIN
            who = "the plain job itself" if plain else "with it the job"
            reason = f"its losses could not be compared: {who} {failed.fate.value}: {failed.what}"
            return Compared(passes=False, reason=reason, blames_plan=not plain)
        except InvalidMeasurement as invalid:
            return Compared(passes=False, reason=f"its losses could not be compared: {invalid.what}", blames_plan=False)
        return Compared(passes=curves.verdict not in ("harmed", "better"), reason=curves.sentence, curves=curves)


def _record(choice: Choice, passes: bool, reason: str, unjudged: str | None, inconclusive: bool = False) -> Proven:
    if choice.preserves is Preserves.ROUNDING:
        reason = f"{reason}; losses were compared because no gradient of this job can be judged: {unjudged}"
    return Proven(choice=choice, passes=passes, reason=reason, by_losses=True, inconclusive=inconclusive)


def _why(dropped: Dropped[Compared]) -> str:
    reason, beside = dropped.answer.reason, listed(dropped.beside)
    if not dropped.blamed:
        return f"fails together with {beside}; which of them is to blame, there was no time to find out: {reason}"
    return f"fails together with {beside}, and what is left without it passes: {reason}" if beside else reason
