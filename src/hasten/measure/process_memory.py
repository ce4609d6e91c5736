"""Bytes that this process holds, and what it costs to get new pages.

Held is what it has allocated and not freed: as torch counts it on a CUDA device, on Linux as glibc does (mallinfo2,
glibc 2.33 and newer), elsewhere the resident memory. With another allocator, such as jemalloc, glibc counts nothing.

A page is mapped and filled with zeros when it is first touched. A system with huge pages maps many at once and counts
them as one, so the bytes of one page fault are measured.
"""

from __future__ import annotations

import ctypes
import mmap
import resource
import time
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch

_PROBE_BYTES = 16 << 20
_PROBES = 5
_FIELDS = ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")


class _Mallinfo2(ctypes.Structure):
    _fields_ = [(name, ctypes.c_size_t) for name in _FIELDS]
    hblkhd: int
    uordblks: int


def held_bytes(device: torch.device) -> int:
    if device.type == "cuda":
        return torch.cuda.memory_allocated(device)
    ask = _mallinfo2()
    if ask is None:
        return resident_bytes()
    found = ask()
    return found.uordblks + found.hblkhd


def resident_bytes() -> int:
    return psutil.Process().memory_info().rss


class Fault(NamedTuple):
    """One page fault: seconds of one thread, unmapping included, and the bytes that it maps."""

    seconds: float
    bytes: float


def page_faults() -> int:
    """Of this process so far, without disk access."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def fault_cost() -> Fault:
    """The median of a few probes, by the seconds of a byte."""
    return sorted((_probe() for _ in range(_PROBES)), key=lambda each: each.seconds / each.bytes)[_PROBES // 2]


def _probe() -> Fault:
    """Touching new memory, less touching it again."""
    begin, faults = time.perf_counter(), page_faults()
    memory = mmap.mmap(-1, _PROBE_BYTES, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)  # as an allocator does
    if hasattr(mmap, "MADV_NOHUGEPAGE"):  # a step's blocks are smaller than a huge page, whose fault costs far more
        memory.madvise(mmap.MADV_NOHUGEPAGE)
    numbers = np.frombuffer(memory, np.uint8)
    numbers.fill(1)
    touched = time.perf_counter()
    numbers.fill(1)
    again = time.perf_counter()
    found = max(page_faults() - faults, 1)
    del numbers  # it keeps the memory open
    memory.close()
    end = time.perf_counter()
    seconds = max(0.0, (touched - begin) + (end - again) - (again - touched))
    return Fault(seconds / found, _PROBE_BYTES / found)


@cache
def _mallinfo2() -> Any:
    """The allocator's own function; None where it has none."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    function.restype, function.argtypes = _Mallinfo2, []
    return function
