"""A loss that leaps: told, because one bad batch or a rate that is too high shows so, and smooth curves hide it.

A log line is a spike when its loss lies more than LEAP times the usual spread above the usual loss, and well above it
in its own terms too, so that a loss that has all but stopped moving does not raise alarms. Usual is the median of the
lines before, and their spread the median distance from it, as neither is moved by a spike itself.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from statistics import median
from typing import Any

WINDOW = 30  # log lines
_FEWEST = 10
LEAP = 8.0  # spreads; the median distance of a normal sample is 0.67 of its standard deviation
_SHARE = 0.2  # of the usual loss


class Spikes:
    def __init__(self) -> None:
        self._before: deque[float] = deque(maxlen=WINDOW)

    def observe(self, loss: float, step: int) -> str | None:
        """Take in a log line; what to tell of it."""
        before = [*self._before]
        if math.isfinite(loss):
            self._before.append(loss)
        if len(before) < _FEWEST or not is_spike(loss, before):
            return None
        usual = f"the {len(before)} log lines before it have a median of {median(before):.4g}"
        return f"the loss leapt to {loss:.4g} before step {step:,}; {usual}"

    def state_dict(self) -> dict[str, Any]:
        return {"before": [*self._before]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._before = deque(state["before"], maxlen=WINDOW)


def is_spike(loss: float, before: Sequence[float]) -> bool:
    usual = median(before)
    spread = median(abs(each - usual) for each in before)
    return loss - usual > max(LEAP * spread, _SHARE * abs(usual))
