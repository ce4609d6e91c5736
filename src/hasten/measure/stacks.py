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

import math
import sys
import threading
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from types import FrameType

INTERVAL_SECONDS = 0.02
_SWITCH_SECONDS = 2e-4
_Z = 1.96  # of a 95 % interval


class Stacks:
    """Samples of one thread. place: what a frame, the innermost of the thread, says of where it is."""

    def __init__(self, thread: int, place: Callable[[FrameType], Hashable]) -> None:
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
            frame = sys._current_frames().get(self._thread)
            if frame is not None:
                self.counts[self._place(frame)] += 1
            del frame  # it would keep the thread's local tensors alive


def share(found: int, samples: int) -> tuple[float, float, float]:
    """The low end of the share's 95 % interval, the share itself and the high end; (0, 0, 1) of no samples."""
    if not samples:
        return 0.0, 0.0, 1.0
    p, z2 = found / samples, _Z * _Z / samples
    middle = (p + z2 / 2) / (1 + z2)
    reach = _Z / (1 + z2) * math.sqrt(p * (1 - p) / samples + z2 / (4 * samples))
    return max(0.0, min(middle - reach, p)), p, min(1.0, max(middle + reach, p))  # rounding aside
