"""Shared memory that a killed process has left under a name.

What a worker sends a batch by has a name for some microseconds, from its making until it is open. A worker that is
killed then leaves it, and the memory with it. The name begins with the number of the process: so it is noted in a
folder which processes there were, and what they have left can be found when they are gone.

Source: NewProcessWideShmHandle and MapAllocator in torch's ATen/MapAllocator.cpp.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from hasten.checkpoint.files import make_building_folder, names_in, remove_file, remove_folder
from hasten.errors import StorageFailed
from hasten.facts.machine import SHARED_MEMORY

_PROCESS = "process-"
_LONGEST = 9  # digits; the kernel counts processes to 2^22


def note_this_process(folder: Path) -> None:
    """For remove_segments_noted_in. Not for one that shares memory by names that last."""
    with suppress(StorageFailed):  # it matters only if this process is killed
        make_building_folder(folder / f"{_PROCESS}{os.getpid()}")


def forget_processes(folder: Path, pids: Iterable[int]) -> None:
    """Those that ended and have left nothing. Raises StorageFailed."""
    for pid in pids:
        remove_folder(folder / f"{_PROCESS}{pid}")


def remove_segments_noted_in(folder: Path) -> None:
    """Those of all processes that were noted there and are no more. Raises StorageFailed."""
    numbers = [name.removeprefix(_PROCESS) for name in names_in(folder) if name.startswith(_PROCESS)]
    noted = [int(number) for number in numbers if number.isdecimal() and len(number) <= _LONGEST]
    remove_segments(number for number in noted if not psutil.pid_exists(number))


def remove_segments(pids: Iterable[int]) -> None:
    """Of processes that ended, or that are about to. Raises StorageFailed."""
    starts = tuple(f"torch_{pid}_" for pid in pids)
    for name in names_in(SHARED_MEMORY) if starts else ():
        if name.startswith(starts):
            remove_file(SHARED_MEMORY / name)
