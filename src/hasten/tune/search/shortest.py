"""How long the shortest search takes that can come to a plan, said before its first trial where there is less time.

A window has one whole step at least, and so has every step of a proof, so with slow steps no search is short: the first
heat with the most promising choice, the proof of it and its confirmation are run whatever the time, because without
them nothing is known.
"""

from __future__ import annotations

import math

from hasten.facts.trials import Doing


def warning_of(step_seconds: float, needed_seconds: float, seconds_left: float) -> Doing | None:
    """None where there are as many seconds as that search needs."""
    if needed_seconds <= seconds_left:
        return None
    told = f"{needed_seconds:.0f} s" if needed_seconds < 120 else f"{math.ceil(needed_seconds / 60)} min"
    what = (
        f"a step takes {step_seconds:.3g} s, so the shortest search that can find a plan takes about {told} more, and "
        f"--seconds leaves {max(seconds_left, 0):.0f} s; Ctrl-C ends it"
    )
    return Doing(what=what, stays=True)
