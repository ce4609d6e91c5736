"""Times the parts of a script in a trial of its own: some steps in windows, where their seconds go, and a turn."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import median

from hasten.facts.plan import Plan
from hasten.facts.scripts.script_times import ScriptTimes, Sync
from hasten.facts.scripts.seen import Length, Seen
from hasten.tuning.search.objective import one_off
from hasten.tuning.trials.arms import Arm, Arms
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome

MEASURED_SECONDS = 6.0  # of all windows, unless a step is long
WINDOWS, FEWEST_WINDOWS = 8, 2
WARM_UP_STEPS = 2
MOST_STEPS = 100  # of a window
COUNTED_STEPS = 4  # in which a GPU is waited for
LONGEST_TURN_SECONDS = 60.0
PHASES = WINDOWS + 4  # that are reported
_PARTS = ("data_wait", "forward", "backward", "optimizer", "python")


def timed(arms: Arms, seen: Seen, report: Callable[[int, str], object]) -> ScriptTimes:
    """report: is called with the number of phases that are over, of PHASES, and with the next one. Raises ArmFailed."""
    report(0, "to the first step")
    with arms.start("plain", Plan()) as arm:
        others = arms.other_programs
        first = arm.window(1)
        report(1, "warming up")
        usual = arm.window(WARM_UP_STEPS).seconds / WARM_UP_STEPS
        steps, count = windows_of(usual, seen.length)
        windows, budgets = list[float](), list[dict[str, float]]()
        for number in range(count):
            report(2 + number * WINDOWS // count, "timing steps")
            windows.append(others.undisturbed(lambda: arm.window(steps)).seconds / steps)
            budgets.append(arm.ask("budget", steps=steps)["spent"])
        step = median(windows)
        parts = {part: median(each[part] for each in budgets) for part in _PARTS}
        syncs = _syncs(arm, seen)
        report(PHASES - 2, "timing the start of Python")
        start = arms.process_seconds(arm) + one_off(arm.build_seconds, arm.first_turn, first, step)
        report(PHASES - 1, "timing what is done between two epochs")
        turn, why = _turn(arm, seen)  # which may end the arm, so it is the last
        interruptions = math.fsum(arm.interruptions) / arm.steps_seen
    return ScriptTimes(
        start=start,
        step=step,
        shortest=min(windows),
        longest=max(windows),
        windows=count,
        window_steps=steps,
        parts={name: seconds / math.fsum(parts.values()) * step for name, seconds in parts.items()},
        turn=turn,
        no_turn=why,
        interruptions=interruptions,
        syncs=syncs,
        others=others.share,
    )


def windows_of(step_seconds: float, length: Length) -> tuple[int, int]:
    """How many steps of a window, and how many windows, each with another one for the parts of its steps. A run that
    is short is not repeated for them."""
    step_seconds = max(step_seconds, 1e-6)
    most = MOST_STEPS if length.steps is None else min(MOST_STEPS, length.steps // (2 * WINDOWS))
    steps = max(1, min(most, int(MEASURED_SECONDS / (2 * WINDOWS * step_seconds))))
    return steps, max(FEWEST_WINDOWS, min(WINDOWS, int(MEASURED_SECONDS / (2 * steps * step_seconds))))


def _turn(arm: Arm, seen: Seen) -> tuple[float | None, str]:
    """Seconds, or why they are not known."""
    if seen.loader is None:
        return None, "the steps read no DataLoader, whose end would show an epoch"
    try:
        return arm.ask("turn", LONGEST_TURN_SECONDS)["seconds"], ""
    except ArmFailed as failed:
        if failed.outcome is Outcome.HUNG:
            return None, f"it is longer than {LONGEST_TURN_SECONDS:g} s"
        return None, f"the script fails where its loader ends early: {failed.what.rstrip(': ')}"


def _syncs(arm: Arm, seen: Seen) -> tuple[Sync, ...]:
    if seen.model.device != "cuda":
        return ()
    found = arm.ask("syncs", steps=COUNTED_STEPS)["syncs"]
    return tuple(Sync(file=file, line=line, times=count / COUNTED_STEPS) for file, line, count in found)
