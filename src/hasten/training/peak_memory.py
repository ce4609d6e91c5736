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
    of_usage = _by_usage()
    if sys.platform != "linux":
        return of_usage
    # Linux hands the figure of getrusage on from the process that started this one.
    return lambda: _linux_peak() or of_usage()


def _by_usage() -> Callable[[], int]:
    try:
        from resource import RUSAGE_SELF, getrusage
    except ImportError:
        process = psutil.Process()
        return lambda: process.memory_info().rss
    return lambda: getrusage(RUSAGE_SELF).ru_maxrss * _UNIT


def _linux_peak() -> int | None:
    """VmHWM of proc_pid_status(5), in bytes; None where the kernel does not tell it."""
    try:
        with open("/proc/self/status", "rb", buffering=0) as status:
            found = _PEAK.search(status.read(1 << 16))
    except OSError:
        return None
    return int(found[1]) * 1024 if found else None
