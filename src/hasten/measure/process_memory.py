"""Bytes that this process holds: what it has asked for and not given back.

On a CUDA device torch counts them. On a host with glibc its allocator does, to the byte (mallinfo2, glibc 2.33 and
newer: what lies in all of its arenas and what is mapped by itself). Where another allocator is loaded before it, as
jemalloc or tcmalloc by LD_PRELOAD, glibc is asked all the same and sees nothing of what the program holds. Elsewhere it
is what the system has given the process, which also holds what the allocator keeps for later.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
import time
from functools import cache
from typing import Any, NamedTuple

import torch

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
    """That the system has given this process."""
    import psutil

    return psutil.Process().memory_info().rss


def peak_resident_bytes() -> int:
    """That this process had of the host's memory at its largest; where the system does not tell, that it has now."""
    try:
        import resource
    except ImportError:  # Windows
        return resident_bytes()
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


@cache
def _mallinfo2() -> Any:
    """The allocator's own function; None where it has none."""
    try:
        function = ctypes.CDLL(None).mallinfo2
    except (AttributeError, OSError, TypeError):
        return None
    function.restype, function.argtypes = _Mallinfo2, []
    return function


# ── page faults ──

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
