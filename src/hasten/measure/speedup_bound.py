"""What a time budget allows: the most that a planned run can gain when parts of it take no time any more.

    gain = total / (total without those parts)          total = steps × step + evaluations × evaluation + turns × turn

This is Amdahl's law (1967) with the whole of a part taken away. It is an upper bound and is always called one: nothing
makes a part vanish, and what is taken away in one place often comes back in another, as a loader that was hidden behind
a slow model is waited for once the model is fast. For that reason a bound holds for the plan that was measured alone,
and a plan with one choice more has a budget of its own.

What keeps the bound from being too tight:

* The step is the shorter of two: the budget's own sum, and one that nobody looked into, where that was measured too. On
  an accelerator to look means to wait at every boundary, so the parts overlap less and their sum is longer.
* All epochs count as turns, the first included, and what is paid once is left out of the total.

What no bound here knows: which parts something can make shorter. That is for whoever knows the techniques to say.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from hasten.errors import InvalidMeasurement
from hasten.facts.trials import Budget


class Part(StrEnum):
    """What the seconds of a planned run go to: the fields of a Budget, and the turns between epochs."""

    DATA_WAIT = "data_wait"
    TRANSFER = "transfer"
    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"
    PYTHON = "python"
    EVALUATION = "evaluation"
    TURN = "turn"


Parts = frozenset[Part]
EVERYTHING: Parts = frozenset(Part)
STEP: Parts = EVERYTHING - {Part.EVALUATION, Part.TURN}

_WORDS = {
    Part.DATA_WAIT: "waiting for data",
    Part.TRANSFER: "the copy to the device",
    Part.FORWARD: "the forward pass",
    Part.BACKWARD: "the backward pass",
    Part.OPTIMIZER: "the update",
    Part.PYTHON: "the loop around them",
    Part.EVALUATION: "evaluation",
    Part.TURN: "the turns of the epochs",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class PlannedRun:
    """How often what a budget knows the seconds of happens until the planned run is over.

    step_seconds: of a step that nobody looked into; None where only the budget was measured.
    """

    steps: int
    evaluations: int = 0
    turns: int = 0  # first batches of an epoch, that of the first epoch included
    turn_seconds: float = 0.0
    step_seconds: float | None = None


def most_gain(budget: Budget, run: PlannedRun, parts: Parts) -> float:
    """How many times sooner the planned run would end if these parts took no time: 1 or more, infinite where nothing is
    left. Raises InvalidMeasurement for seconds that are negative, NaN or infinite, and for a run that takes no time."""
    _check(budget, run)
    total, rest = _seconds(budget, run, frozenset()), _seconds(budget, run, parts)
    return total / rest if rest > 0 else math.inf


def share(budget: Budget, run: PlannedRun, parts: Parts) -> float:
    """Of the planned run, what these parts take at most: 0 to 1. Raises what most_gain raises."""
    return 1 - 1 / most_gain(budget, run, parts)


def reason(budget: Budget, run: PlannedRun, parts: Parts) -> str:
    """Why something that can make these parts shorter, and no others, is not tried; for a bound too small to be seen.

    Numbers are rounded up, as those of an upper bound must be. Raises what most_gain raises.
    """
    named = [_WORDS[part] for part in Part if part in parts and _happens(part, run)]
    if not named:
        return "nothing to gain in time: it makes no part of the planned run shorter"
    gain = most_gain(budget, run, parts)
    if math.isinf(gain):
        return "no bound: nothing of the planned run is out of its reach"
    most = f"{_percent(gain - 1)} to gain" if gain < 2 else f"{_rounded_up(gain)} times as fast"
    takes = "takes" if len(named) == 1 else "take"
    return f"at most {most}: {_listed(named)} {takes} {_percent(1 - 1 / gain)} of the planned run (upper bound)"


def _seconds(budget: Budget, run: PlannedRun, without: Parts) -> float:
    """Of the planned run, when the parts `without` take no time."""
    step = budget.step if run.step_seconds is None else min(budget.step, run.step_seconds)
    taken_away = math.fsum(getattr(budget, part) for part in STEP & without)
    left_of_step = 0.0 if without >= STEP else max(0.0, step - taken_away)
    evaluation = 0.0 if Part.EVALUATION in without else budget.evaluation
    turn = 0.0 if Part.TURN in without else run.turn_seconds
    return run.steps * left_of_step + run.evaluations * evaluation + run.turns * turn


def _happens(part: Part, run: PlannedRun) -> bool:
    often = {Part.EVALUATION: run.evaluations, Part.TURN: run.turns * run.turn_seconds}
    return bool(often.get(part, run.steps))


def _check(budget: Budget, run: PlannedRun) -> None:
    seconds = {part.value: getattr(budget, part) for part in EVERYTHING - {Part.TURN}}
    seconds |= {"turn": run.turn_seconds, "step": 0.0 if run.step_seconds is None else run.step_seconds}
    for name, value in seconds.items():
        if not (math.isfinite(value) and value >= 0):
            what = f"{name} took {value} seconds"
            raise InvalidMeasurement(what, where=f'the budget of "{budget.arm}"', fix="measure it again")
    if not _seconds(budget, run, frozenset()) > 0:
        raise InvalidMeasurement(
            "the planned run takes no time", where=f'the budget of "{budget.arm}"', fix="measure at least one step"
        )


def _listed(names: Iterable[str]) -> str:
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def _percent(share: float) -> str:
    return f"{_rounded_up(100 * share)} %"


def _rounded_up(value: float) -> str:
    # Rounded once before, as 0.4 of a budget arrives as 0.40000001.
    return f"{math.ceil(round(value * 10, 6)) / 10:.1f}"
