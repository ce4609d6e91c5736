"""Samples of a thread's stack: the share of samples at a place is its share of the time.

Of n samples the share k / n of a place has a binomial spread; the interval is Wilson's (1927, Probable inference, the
law of succession, and statistical inference), which holds for few samples.

The sampled thread is not traced: it waits for the interpreter's lock for some ten microseconds a sample. The sampling
thread gets the lock after the switch interval, or earlier when a long kernel releases it. With Python's usual five
milliseconds, samples of Python code would slip into the kernel behind it, so the interval is short meanwhile.
"""

from __future__ import annotations

import gc
import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import accumulate, chain, repeat, takewhile
from operator import call
from types import FrameType
from typing import Any

INTERVAL_SECONDS = 0.02
_SWITCH_SECONDS = 2e-4
_Z = 1.96  # of a 95 % interval


class Stacks:
    """Samples of one thread. place: maps its frames, the innermost first, to a place."""

    def __init__(self, thread: int, place: Callable[[Sequence[FrameType]], Hashable]) -> None:
        self.counts = Counter[Hashable]()
        self._thread, self._place = thread, place
        self._over = threading.Event()

    @property
    def samples(self) -> int:
        return self.counts.total()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Repeated uses add their samples."""
        self._over.clear()
        usual = sys.getswitchinterval()
        sys.setswitchinterval(min(usual, _SWITCH_SECONDS))
        watcher = threading.Thread(target=self._watch, name="hasten-stacks", daemon=True)
        watcher.start()
        try:
            yield
        finally:
            self._over.set()
            watcher.join()
            sys.setswitchinterval(usual)

    def _watch(self) -> None:
        while not self._over.wait(INTERVAL_SECONDS):
            if frames := stack_of(self._thread):
                self.counts[self._place(frames)] += 1
            del frames  # they would keep the thread's local tensors alive


def stack_of(thread: int) -> list[FrameType]:
    """Its frames, the innermost first, all of one instant; none of a thread that has ended.

    CPython 3.11 crashes on f_back of a frame that has ended. So the thread must not run meanwhile: no Python code runs
    between two frames, and the collector, whose finalizers may release the interpreter's lock, is off.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return [*_outwards(map(dict.get, map(call, (sys._current_frames,)), (thread,)))]
    finally:
        if collects:
            gc.enable()


def callers(frame: FrameType) -> Iterator[FrameType]:
    """A frame of the calling thread, and its callers."""
    return _outwards((frame,))


def _outwards(innermost: Iterable[Any]) -> Iterator[Any]:
    return takewhile(bool, accumulate(chain(innermost, repeat("f_back")), getattr))


def share(found: int, samples: int) -> tuple[float, float, float]:
    """The low end of the share's 95 % interval, the share itself and the high end; (0, 0, 1) of no samples."""
    if not samples:
        return 0.0, 0.0, 1.0
    p, z2 = found / samples, _Z * _Z / samples
    middle = (p + z2 / 2) / (1 + z2)
    reach = _Z / (1 + z2) * math.sqrt(p * (1 - p) / samples + z2 / (4 * samples))
    return max(0.0, min(middle - reach, p)), p, min(1.0, max(middle + reach, p))  # rounding aside
