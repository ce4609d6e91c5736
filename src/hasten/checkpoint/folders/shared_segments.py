"""Shared memory that a killed worker process has left under a name.

A worker sends a batch through a segment that has a name for some microseconds. A worker killed in that time leaves the
segment in memory. Its name begins with the worker's process number, so the workers of a process are noted in a folder,
and the segments of those that are gone can be found and removed.

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
    """Note this worker for remove_segments_noted_in. Not for a process that shares memory by lasting names."""
    with suppress(StorageFailed):  # it matters only if this process is killed
        make_building_folder(folder / f"{_PROCESS}{os.getpid()}")


def forget_processes(folder: Path, pids: Iterable[int]) -> None:
    """Remove the notes of processes that ended and left nothing. Raises StorageFailed."""
    for pid in pids:
        remove_folder(folder / f"{_PROCESS}{pid}")


def remove_segments_noted_in(folder: Path) -> None:
    """Remove the segments of all noted processes that are gone. Raises StorageFailed."""
    numbers = [name.removeprefix(_PROCESS) for name in names_in(folder) if name.startswith(_PROCESS)]
    noted = [int(number) for number in numbers if number.isdecimal() and len(number) <= _LONGEST]
    remove_segments(number for number in noted if not psutil.pid_exists(number))


def remove_segments(pids: Iterable[int]) -> None:
    """Remove the segments of processes that have ended, or are about to. Raises StorageFailed."""
    starts = tuple(f"torch_{pid}_" for pid in pids)
    for name in names_in(SHARED_MEMORY) if starts else ():
        if name.startswith(starts):
            remove_file(SHARED_MEMORY / name)
