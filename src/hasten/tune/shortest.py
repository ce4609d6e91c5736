"""How long the shortest search takes that can come to a plan, said before it begins where that is longer than asked.

A window has one whole step at least, so with slow steps no search is short: the first heat and the confirmation of what
it found are run whatever the time, because without them nothing is known.
"""

from __future__ import annotations

import math

from hasten.facts.trials import Doing
from hasten.measure.paired import LEAST_PAIRS
from hasten.tune.look import Look

ARMS_OF_A_HEAT = 3  # the job twice, and one choice


def shortest_seconds(look: Look) -> float:
    """Of one heat with one choice, and of its confirmation."""
    return 2 * ARMS_OF_A_HEAT * (look.arm_start_seconds + LEAST_PAIRS * look.window_seconds)


def warning_of(look: Look, seconds: float) -> Doing | None:
    """seconds: that are left. None where they are enough."""
    needed = shortest_seconds(look)
    if needed <= seconds:
        return None
    told = f"{needed:.0f} s" if needed < 120 else f"{math.ceil(needed / 60)} min"
    what = (
        f"a step takes {look.step_seconds:.3g} s, so the shortest search that can find a plan takes about {told}, "
        f"longer than --seconds says; Ctrl-C ends it"
    )
    return Doing(what=what, stays=True)
