"""How long each line of the user's code takes in a step, by Python's own trace of lines.

A sampled stack misses lines of many small operations: each gives the interpreter's lock away and takes it back before
the thread that samples has woken, so the sample falls into the next long kernel. Here every line is timed, and what the
trace itself takes is left out, but for what Python spends on calling it.
"""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from types import FrameType
from typing import Any

from hasten.doctor.places import Place, is_users, place_of


class LineTimes:
    """Use it around steps, in the thread that takes them. seconds: of each line, with what it calls outside the user's
    code. A debugger that traces too sees nothing meanwhile."""

    def __init__(self) -> None:
        self.seconds: defaultdict[Place, float] = defaultdict(float)
        self._running: list[Place | None] = []  # the lines of the user's functions that wait for each other
        self._mark = 0.0

    def __enter__(self) -> LineTimes:
        self._before = sys.gettrace()
        sys.settrace(self._called)
        return self

    def __exit__(self, *exception: object) -> None:
        sys.settrace(self._before)

    def _called(self, frame: FrameType, event: str, argument: Any) -> Any:
        if not is_users(frame.f_code.co_filename):
            return None
        self._add()
        self._running.append(place_of(frame))
        self._mark = time.perf_counter()
        return self._moved

    def _moved(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "exception":
            self._add()
            if self._running:
                self._running.pop()
            if event == "line":
                self._running.append(place_of(frame))
            self._mark = time.perf_counter()
        return self._moved

    def _add(self) -> None:
        place = self._running[-1] if self._running else None
        if place is not None:
            self.seconds[place] += time.perf_counter() - self._mark
