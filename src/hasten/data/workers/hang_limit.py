"""How long a batch may take before its reader counts as hung."""

from __future__ import annotations

import time
from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

HANG_SECONDS, HANG_BATCHES = 60.0, 20
RECENT_BATCHES = 64


@dataclass(frozen=True, kw_only=True, slots=True)
class Patience:
    """How long one batch may take: `seconds`, or `batches` times the usual time from one to the next, whichever is
    longer. first_seconds: for the first one."""

    seconds: float = HANG_SECONDS
    first_seconds: float = HANG_SECONDS
    batches: int = HANG_BATCHES

    def limit(self, usual_seconds: float) -> float:
        return max(self.seconds, self.batches * usual_seconds)


class Pace:
    """The batches of one epoch by the times at which they came, and how long the next one may take. first_takes: how
    many times longer than another the first batch may take."""

    def __init__(self, patience: Patience, first_takes: int = 1) -> None:
        self._patience, self._first_takes = patience, first_takes
        self._times = deque[float](maxlen=RECENT_BATCHES)  # by the monotonic clock

    def restart(self) -> None:
        """Another epoch begins."""
        self._times.clear()

    def came(self) -> None:
        self._times.append(time.monotonic())

    def limit_seconds(self) -> float:
        times = list(self._times)
        if not times:
            return self._patience.first_seconds * self._first_takes
        return self._patience.limit(median(later - earlier for earlier, later in pairwise(times)) if times[1:] else 0.0)
