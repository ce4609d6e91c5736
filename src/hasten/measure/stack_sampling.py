"""Where a thread is, asked many times a second: what it is found at often is where its seconds go.

A sample falls on a place with the probability of the time spent there, so of n samples the share k / n of a place has a
binomial spread. The interval is Wilson's (Probable inference, the law of succession, and statistical inference, 1927),
which holds for few samples and for none.

The sampled thread is not stopped and not traced: it waits for the interpreter's lock while a sample is taken, some ten
microseconds. Who asks for that lock gets it after the switch interval, or sooner where the other gives it up by itself,
as it does in a long kernel. With Python's usual five milliseconds, samples that fell on Python would slip into the
kernel behind it, so the interval is short while samples are taken.
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
    """Samples of one thread. place: what its frames, the innermost first, say of where it is."""

    def __init__(self, thread: int, place: Callable[[Sequence[FrameType]], Hashable]) -> None:
        self.counts = Counter[Hashable]()
        self._thread, self._place = thread, place
        self._over = threading.Event()

    @property
    def samples(self) -> int:
        return self.counts.total()

    @contextmanager
    def watching(self) -> Iterator[None]:
        """May be entered again: samples add up."""
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

    The thread must not move on meanwhile: CPython 3.11 then follows a frame that has ended into what lies in its memory
    by now, and writes there. So nothing here is Python between two frames, and nothing is collected, as a finalizer
    may be Python, or give the interpreter's lock away.
    """
    collects = gc.isenabled()
    gc.disable()
    try:
        return [*_outwards(map(dict.get, map(call, (sys._current_frames,)), (thread,)))]
    finally:
        if collects:
            gc.enable()


def callers(frame: FrameType) -> Iterator[FrameType]:
    """A frame of the thread that asks, and those that it was called from."""
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
