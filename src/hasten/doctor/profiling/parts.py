"""Adds up the seconds between the boundaries inside a step."""

from __future__ import annotations

import time
from collections.abc import Callable

from hasten.training.step_parts.phases import Phase

_PARTS = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.UPDATE: "optimizer"}


class PartsClock:
    """Call it at each boundary. settle: waits until the device has done what it was asked for.

    seconds: of transfer, forward, backward and optimizer, of all steps so far.
    """

    def __init__(self, settle: Callable[[], None]) -> None:
        self.seconds = dict.fromkeys(("transfer", *_PARTS.values()), 0.0)
        self._settle, self._mark = settle, 0.0

    def __call__(self, phase: Phase) -> None:
        if phase is not Phase.PLACING:
            self._settle()
        now = time.perf_counter()
        if phase is Phase.PLACED:
            self.seconds["transfer"] += now - self._mark
        elif phase in _PARTS:
            self.seconds[_PARTS[phase]] += now - self._mark
        self._mark = time.perf_counter()
