"""How long each line of the user's code takes in a step, by Python's own trace of lines.

A sampled stack misses lines of many small operations: each gives the interpreter's lock away and takes it back before
the thread that samples has woken, so the sample falls into the next long kernel. Here every line is timed, and what the
trace itself takes is left out, but for what Python spends on calling it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Sequence
from types import FrameType
from typing import Any

from hasten.doctor.profiling.user_lines import Place, Where, is_users, where
from hasten.measure.stack_sampling import callers


class LineTimes:
    """Use it around steps, in the thread that takes them. seconds: of each line, with what it calls outside the user's
    code; whole: of those in loops, with what they call in it as well; passes: how often those run. A debugger that
    traces too sees nothing meanwhile."""

    def __init__(self) -> None:
        self.seconds: defaultdict[Place, float] = defaultdict(float)
        self.whole: defaultdict[Place, float] = defaultdict(float)
        self.passes = Counter[Place]()
        self._running: list[Where] = []  # the user's functions that wait for each other
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
        self._running.append(where(callers(frame)))
        self._mark = time.perf_counter()
        return self._moved

    def _moved(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "exception":
            self._add()
            if self._running:
                self._running.pop()
            if event == "line":
                self._running.append(found := where(callers(frame)))
                self.passes.update(each for each in found.loops if each == found.place)
            self._mark = time.perf_counter()
        return self._moved

    def _add(self) -> None:
        seconds = time.perf_counter() - self._mark
        running = self._running[-1] if self._running else Where()
        if running.place is not None:
            self.seconds[running.place] += seconds
        for place in running.loops:
            self.whole[place] += seconds


def least_times(steps: Sequence[LineTimes]) -> LineTimes:
    """The first of several equal steps, with the least seconds of a line in any of them."""
    first = steps[0]
    for place in first.seconds:
        first.seconds[place] = min(each.seconds.get(place, 0.0) for each in steps)
    for place in first.whole:
        first.whole[place] = min(each.whole.get(place, 0.0) for each in steps)
    return first
