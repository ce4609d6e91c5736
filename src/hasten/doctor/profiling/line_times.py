"""Seconds of each line of the user's code in a step: by Python's trace of lines, and by samples of the stack.

Samples miss lines of many small operations: each releases the interpreter's lock and takes it again before the sampling
thread has woken, so that the sample falls into the next long kernel. The trace times every line. Its own time is
subtracted, except for what Python spends on calling it.
"""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, replace
from types import FrameType
from typing import Any

from hasten.doctor.profiling.operation_counts import Operations, Tally
from hasten.doctor.profiling.user_lines import Place, Where, where
from hasten.facts.profiles import Line, LoopCost
from hasten.measure.stack_sampling import callers, share
from hasten.users_code import is_users_file, short


class LineTimes:
    """Use it around steps, in the thread that takes them. seconds: of each line, with what it calls outside the user's
    code; whole: of lines in loops, with what they call in the user's code too; passes: how often those run. A debugger
    that traces too sees nothing meanwhile."""

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
        if not is_users_file(frame.f_code.co_filename):
            return None
        self._add()
        self._running.append(where(callers(frame)))
        self._mark = time.perf_counter()
        return self._at_event

    def _at_event(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event != "exception":
            self._add()
            if self._running:
                self._running.pop()
            if event == "line":
                self._running.append(found := where(callers(frame)))
                self.passes.update(each for each in found.loops if each == found.place)
            self._mark = time.perf_counter()
        return self._at_event

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


def lines_of_steps(counts: Mapping[Hashable, int], step: float, operations: Operations, times: LineTimes) -> list[Line]:
    """counts: of samples of the stack in steps. step: seconds of one."""
    samples, own, whole = sum(counts.values()), Counter[Place](), Counter[Place]()
    for found, count in counts.items():
        if isinstance(found, Where) and found.place is not None:
            own[found.place] += count
            whole.update(dict.fromkeys(found.loops, count))
    lines = list[Line]()
    for place in {*own, *operations.lines, *operations.loops}:
        if place.in_loading:
            continue
        line = line_of(place, own[place], samples, step, times.seconds.get(place, 0.0))
        line = replace(line, **asdict(operations.lines.get(place, Tally())))
        if place in operations.loops:
            loop = operations.loops[place]
            called = line_of(place, whole[place], samples, step, times.whole.get(place, 0.0))
            turns = LoopCost(
                operations=loop.operations,
                passes=times.passes[place],
                over_layers=loop.is_over_layers,
                seconds=called.seconds,
                high=called.high,
                timed=called.timed,
            )
            line = replace(line, turns=turns)
        lines.append(line)
    return lines


def line_of(place: Place, found: int, samples: int, step: float, timed: float = 0.0) -> Line:
    """found: how many of the samples met the line. step: seconds that all samples cover. timed: seconds of the line."""
    _, value, high = share(found, samples)
    return Line(
        path=short(place.path),
        line=place.line,
        function=place.function,
        in_loading=place.in_loading,
        seconds=value * step,
        high=max(high * step, timed),
        timed=timed,
    )
