"""Pages of memory that are new to this process: how many there were, and what one costs.

A page is mapped and filled with zeros when it is first touched. What an allocator gives back to the system, and asks
for again, is new each time. A system with huge pages may map many at once, which it counts as one: how much comes with
each is measured, and not known beforehand.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from typing import NamedTuple

_PROBE_BYTES = 16 << 20
_PROBES = 5

try:
    import resource
except ImportError:  # Windows does not say
    resource = None


class Fault(NamedTuple):
    """One page, or as many as come at once: the seconds of one thread, that it is given back again included."""

    seconds: float
    bytes: float


def page_faults() -> int:
    """Of this process, so far, that no disk was needed for; 0 where the system does not count them."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource is not None else 0


def fault_cost() -> Fault:
    """Of one of them: the median of a few probes, by what a byte costs."""
    return sorted((_probe() for _ in range(_PROBES)), key=lambda each: each.seconds / each.bytes)[_PROBES // 2]


def _probe() -> Fault:
    """A touch of memory that is new, less one of memory that is not."""
    begin, faults = time.perf_counter(), page_faults()
    memory = _private(_PROBE_BYTES)
    first = ctypes.c_char.from_buffer(memory)
    ctypes.memset(ctypes.addressof(first), 1, _PROBE_BYTES)
    touched = time.perf_counter()
    ctypes.memset(ctypes.addressof(first), 1, _PROBE_BYTES)
    again = time.perf_counter()
    found = max(page_faults() - faults, 1)
    del first  # it keeps the memory open
    memory.close()
    end = time.perf_counter()
    seconds = max(0.0, (touched - begin) + (end - again) - (again - touched))
    return Fault(seconds / found, _PROBE_BYTES / found)


def _private(length: int) -> mmap.mmap:
    """As an allocator has it from the system; memory that processes share is of another kind, and costs more."""
    if sys.platform == "win32":
        return mmap.mmap(-1, length)
    return mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
