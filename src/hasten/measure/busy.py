"""Whether this machine has other work: what it adds to every figure, nobody can take out again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import psutil


@dataclass(slots=True)
class Busy:
    """others: cores that processes kept busy which are not this one's, on average."""

    others: float = 0.0


@contextmanager
def busy_cores(own_seconds: Callable[[], float]) -> Iterator[Busy]:
    """Of what is inside, once it is over. own_seconds: processor time of this process and of its own so far."""
    found, begin, own, all_of_them = Busy(), time.monotonic(), own_seconds(), _busy_seconds()
    yield found
    passed = time.monotonic() - begin
    found.others = max(0.0, (_busy_seconds() - all_of_them - (own_seconds() - own)) / passed) if passed else 0.0


def _busy_seconds() -> float:
    """Of all cores together, since the machine began."""
    times = psutil.cpu_times()
    return times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "steal", 0.0)
