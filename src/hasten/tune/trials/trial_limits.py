"""What an arm may take of the machine, and the look at what it has taken.

The process that waits for an arm's answer looks, ten times a second: an arm spends nothing on it, and one that hangs or
is about to fill the machine cannot keep it from looking. So an arm is told to be out of memory before the system has to
choose a victim. Should it ever have to, trials stand first in its list (trial_process.py), and never who started them.

Memory is that of all processes of an arm. Pages that they share are counted once: a sum of what each holds is looked at
first, as it costs nothing and is never too small; only when that is too much, the kernel is asked to count exactly.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import suppress
from dataclasses import dataclass

from hasten.facts.formatting import byte_size
from hasten.facts.machine import free_memory
from hasten.tune.trials.process_tree import all_of, proportional_bytes, resident_bytes
from hasten.tune.trials.trial_outcome import Fate

MEMORY_SHARE, DISK_SHARE = 0.8, 0.5  # of what is free, for one arm that is given no limit
LEAST_LEFT = 0.1  # share of what was free at an arm's start that has to stay free, whoever takes it
_EXACT_SECONDS = 1.0  # between two exact counts of memory
_FOLDER_SHARE = 0.02  # of the time, at most, for counting a folder with many files
_FOLDER_SECONDS = 1.0  # between two counts at least


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that an arm may take to be built, and for one request, such as a window: of a job that nobody has looked
    at yet, see Arms.expect. Bytes that it may hold in memory, its workers included, and on disk in its own folder: None
    for a share of what is free when it starts."""

    build_seconds: float = 3600.0
    window_seconds: float = 600.0
    memory_bytes: int | None = None
    disk_bytes: int | None = None


def room_for(bytes_of_one: int, free_bytes: int) -> int:
    """How many arms of this size fit beside each other into what is free, with a rest for everybody else."""
    return int(free_bytes * MEMORY_SHARE) // max(1, bytes_of_one)


class Watch:
    """Looks at a process with all below it, and at a folder. most_bytes: of memory that they were seen to hold, pages
    that they share counted in each."""

    def __init__(self, pid: int, folder: str, limits: Limits) -> None:
        self._memory, self._disk = _Memory(pid, limits.memory_bytes), _Disk(folder, limits.disk_bytes)

    @property
    def most_bytes(self) -> int:
        return self._memory.most_bytes

    def look(self) -> tuple[Fate, str] | None:
        """Why the arm cannot go on, if it cannot."""
        if too_much := self._memory.too_much():
            return Fate.OUT_OF_MEMORY, too_much
        if too_much := self._disk.too_much():
            return Fate.DISK_FULL, too_much
        return None


class _Memory:
    def __init__(self, pid: int, limit: int | None) -> None:
        free = free_memory()
        self._pid, self._least_left = pid, int(free * LEAST_LEFT)
        self._limit = int(free * MEMORY_SHARE) if limit is None else limit
        self._exact_at, self._exact_from, self.most_bytes = 0.0, 0, 0

    def too_much(self) -> str | None:
        family = all_of(self._pid)
        held = sum(map(resident_bytes, family))
        self.most_bytes = max(self.most_bytes, held)
        if held > self._limit and self._is_exact_count_due(held):
            exactly = sum(map(proportional_bytes, family))
            if exactly > self._limit:
                return f"it holds {byte_size(exactly)} of memory, and {byte_size(self._limit)} are its limit"
            # It cannot be over the limit before it has taken the rest, or shared pages have become its own.
            self._exact_from, self._exact_at = held + self._limit - exactly, time.monotonic() + _EXACT_SECONDS
        if (left := free_memory()) < self._least_left:
            return (
                f"the machine has {byte_size(left)} of memory left, less than the {byte_size(self._least_left)} that "
                f"must stay free; the arm holds {byte_size(held)}"
            )
        return None

    def _is_exact_count_due(self, held: int) -> bool:
        return held >= self._exact_from or time.monotonic() >= self._exact_at


class _Disk:
    def __init__(self, folder: str, limit: int | None) -> None:
        free = shutil.disk_usage(folder).free
        self._folder, self._least_left = folder, int(free * LEAST_LEFT)
        self._limit = int(free * DISK_SHARE) if limit is None else limit
        self._due_at = 0.0

    def too_much(self) -> str | None:
        with suppress(OSError):  # the job has deleted the folder
            left = shutil.disk_usage(self._folder).free
            if left < self._least_left:
                return (
                    f"the disk of {self._folder} has {byte_size(left)} left, less than the "
                    f"{byte_size(self._least_left)} that must stay free"
                )
        begin = time.monotonic()
        if begin < self._due_at:
            return None
        written = folder_bytes(self._folder)
        now = time.monotonic()
        self._due_at = now + max(_FOLDER_SECONDS, (now - begin) / _FOLDER_SHARE)
        if written > self._limit:
            return f"it wrote {byte_size(written)} into its folder, and {byte_size(self._limit)} are its limit"
        return None


def folder_bytes(folder: str) -> int:
    """That the files below a folder take on disk; links are not followed. What vanishes meanwhile is not counted."""
    taken = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                taken += os.lstat(os.path.join(path, name)).st_blocks * 512
    return taken
