"""The most memory that has been held, read in microseconds: a log line must not slow down what it reports on.

What was given up: the most is since the process began, so a second run in one process begins with the first one's.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable

import psutil
import torch

_PEAK = re.compile(rb"^VmHWM:\s*(\d+) kB$", re.MULTILINE)
_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, by the manual page getrusage(2) of either system


def peak_memory(device: torch.device) -> Callable[[], int]:
    """Reads bytes, the most since the process began: those that torch held on an accelerator, or those that the process
    held, without its workers, on a CPU.

    On Windows, which does not count the latter, it is what the process holds at the moment.
    """
    if device.type == "cuda":
        return lambda: torch.cuda.max_memory_allocated(device)
    return _LinuxPeak(_by_usage()) if sys.platform == "linux" else _by_usage()


def _by_usage() -> Callable[[], int]:
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        process = psutil.Process()
        return lambda: process.memory_info().rss
    return lambda: getrusage(RUSAGE_SELF).ru_maxrss * _UNIT


class _LinuxPeak:
    """Linux hands the figure of getrusage on from the process that started this one, so that of /proc, a file to open
    and to search, is asked until this process has held as much itself."""

    def __init__(self, of_usage: Callable[[], int]) -> None:
        self._of_usage, self._is_own = of_usage, False

    def __call__(self) -> int:
        most = self._of_usage()
        if self._is_own:
            return most
        own = _of_status()
        self._is_own = own is None or own >= most
        return own or most


def _of_status() -> int | None:
    """VmHWM of proc_pid_status(5), in bytes; None where the kernel does not tell it."""
    try:
        with open("/proc/self/status", "rb", buffering=0) as status:
            found = _PEAK.search(status.read(1 << 16))
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
