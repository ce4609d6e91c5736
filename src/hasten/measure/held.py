"""Bytes that this process holds: what it has asked for and not given back.

On a CUDA device torch counts them. On a host with glibc its allocator does, to the byte (mallinfo2, glibc 2.33 and
newer: what lies in all of its arenas and what is mapped by itself). Where another allocator is loaded before it, as
jemalloc or tcmalloc by LD_PRELOAD, glibc is asked all the same and sees nothing of what the program holds. Elsewhere it
is what the system has given the process, which also holds what the allocator keeps for later.
"""

from __future__ import annotations

import ctypes
import sys
from functools import cache
from typing import Any

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
