"""Pages of memory that are new to this process: how many there were, and what one costs.

A page is mapped and filled with zeros when it is first touched. What an allocator gives back to the system, and asks
for again, is new each time.
"""

from __future__ import annotations

import ctypes
import mmap
import time

PAGE_BYTES = mmap.PAGESIZE
_PROBE_BYTES = 16 << 20
_PROBES = 5

try:
    import resource
except ImportError:  # Windows does not say
    resource = None


def page_faults() -> int:
    """Of this process, so far, that no disk was needed for; 0 where the system does not count them."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt if resource is not None else 0


def fault_seconds() -> float:
    """Of one of them, by one thread, that its page is given back again included: the median of a few probes."""
    return sorted(_probe() for _ in range(_PROBES))[_PROBES // 2]


def _probe() -> float:
    """A touch of memory that is new, less one of memory that is not."""
    begin, faults = time.perf_counter(), page_faults()
    memory = mmap.mmap(-1, _PROBE_BYTES)
    first = ctypes.c_char.from_buffer(memory)
    ctypes.memset(ctypes.addressof(first), 1, _PROBE_BYTES)
    touched = time.perf_counter()
    ctypes.memset(ctypes.addressof(first), 1, _PROBE_BYTES)
    again = time.perf_counter()
    found = page_faults() - faults
    del first  # it keeps the memory open
    memory.close()
    end = time.perf_counter()
    return max(0.0, (touched - begin) + (end - again) - (again - touched)) / max(found, 1)
