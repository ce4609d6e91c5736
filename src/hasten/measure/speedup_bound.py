"""Upper bound of a plan's gain: how much sooner a planned run ends when parts of it take no time (Amdahl 1967).

    gain = total / (total without those parts)
    total = steps × step + evaluations × evaluation + turns × turn + interruptions

The bound holds for the plan that was measured: time removed in one place often returns in another, as a loader that
was hidden behind a slow model is waited for once the model is fast. It is never too tight. The step is the shorter of
the profiled and the unprofiled one, since profiling an accelerator waits at every boundary. All epochs count as turns,
and what is paid once is excluded. Interruptions are what a script evaluates and saves within its epochs: what shortens
evaluations or turns can shorten them. Which parts a technique can shorten is for the technique to say.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from hasten.errors import InvalidMeasurement
from hasten.facts.trials import LEAST_GAIN, Budget


class Part(StrEnum):
    """Parts of a planned run: the fields of a Budget, and the turns between epochs."""

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
    """How often each part of a budget happens in the planned run.

    step_seconds: of a step without profiling; None where only the budget was measured.
    """

    steps: int
    evaluations: int = 0
    turns: int = 0  # first batches of an epoch, that of the first epoch included
    turn_seconds: float = 0.0
    interruption_seconds: float = 0.0  # of all together
    step_seconds: float | None = None


def most_gain(budget: Budget, run: PlannedRun, parts: Parts) -> float:
    """How many times faster the planned run would be if these parts took no time: 1 or more, or infinite.

    Raises InvalidMeasurement for a run that takes no time, or NaN or infinite seconds."""
    total, rest = _seconds(budget, run, frozenset()), _seconds(budget, run, parts)
    seen = math.fsum([*(getattr(budget, part) for part in EVERYTHING - {Part.TURN}), run.turn_seconds])
    if not (math.isfinite(seen) and 0 < total < math.inf):
        what = f"its parts take {seen} seconds, and the planned run takes {total}"
        raise InvalidMeasurement(what, where=f'the budget of "{budget.arm}"', fix="measure it again")
    return total / rest if rest > 0 else math.inf


def share(budget: Budget, run: PlannedRun, parts: Parts) -> float:
    """The share of the planned run that these parts take at most. Raises what most_gain raises."""
    return 1 - 1 / most_gain(budget, run, parts)


def reason(budget: Budget, run: PlannedRun, parts: Parts) -> str:
    """Why a technique that shortens only these parts is not tried. Numbers are rounded up, as those of an upper bound
    must be. Raises what most_gain raises."""
    named = [_WORDS[part] for part in Part if part in parts and _happens(part, run)]
    if not named:
        return "nothing to gain: it makes no part of the planned run shorter"
    gain = most_gain(budget, run, parts)
    if math.isinf(gain):
        return "no bound: nothing of the planned run is out of its reach"
    most = f"{_rounded_up(100 * (gain - 1))} % to gain" if gain < 2 else f"{_rounded_up(gain)} times as fast"
    little = ", and less than 1 % is not tried" if gain < LEAST_GAIN else ""
    *first, last = named
    shortens = ", ".join(first) + f" and {last}, which take" if first else f"{last}, which takes"
    of = f"{_rounded_up(100 * (1 - 1 / gain))} % of the planned run after startup"
    return f"at most {most}{little}: it can only shorten {shortens} {of}"


def _seconds(budget: Budget, run: PlannedRun, without: Parts) -> float:
    """Of the planned run, when the parts `without` take no time."""
    step = budget.step if run.step_seconds is None else min(budget.step, run.step_seconds)
    removed = math.fsum(getattr(budget, part) for part in STEP & without)
    left_of_step = 0.0 if without >= STEP else max(0.0, step - removed)
    evaluation = 0.0 if Part.EVALUATION in without else budget.evaluation
    turn = 0.0 if Part.TURN in without else run.turn_seconds
    interruptions = 0.0 if {Part.EVALUATION, Part.TURN} & without else run.interruption_seconds
    return run.steps * left_of_step + run.evaluations * evaluation + run.turns * turn + interruptions


def _happens(part: Part, run: PlannedRun) -> bool:
    often = {
        Part.EVALUATION: run.evaluations + run.interruption_seconds,
        Part.TURN: run.turns * run.turn_seconds + run.interruption_seconds,
    }
    return bool(often.get(part, run.steps))


def _rounded_up(value: float) -> str:
    # Rounded once before: 0.4 of a budget arrives as 0.40000001.
    return f"{math.ceil(round(value * 10, 6)) / 10:.1f}"
