"""The most memory that was held since the process began: a second run in one process begins with the first one's."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from resource import RUSAGE_SELF, getrusage

import torch

from hasten.regular_files import read_regular

_PEAK = re.compile(rb"^VmHWM:\s*(\d+) kB$", re.MULTILINE)
_UNIT = 1 if sys.platform == "darwin" else 1024  # of ru_maxrss, by the manual page getrusage(2) of either system


def peak_memory(device: torch.device) -> Callable[[], int]:
    """Reads bytes, in microseconds: those that torch held on an accelerator, or those that the process held, without
    its workers, on a CPU."""
    if device.type == "cuda":
        return lambda: torch.cuda.max_memory_allocated(device)
    return _of_process


def _of_process() -> int:
    try:
        # On Linux the figure of getrusage begins with that of the process that started this one.
        found = _PEAK.search(read_regular("/proc/self/status"))
    except OSError:
        found = None
    if found is not None:
        return int(found[1]) * 1024
    return getrusage(RUSAGE_SELF).ru_maxrss * _UNIT
