"""What an arm may take of the machine, and the check of what it has taken.

The process that waits for an arm's answer checks ten times a second. Memory is that of all processes of an arm. A sum
of what each holds is never too small and costs nothing; only where that is too much, the kernel counts shared pages
once.
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
from hasten.tune.trials.trial_outcome import Outcome

MEMORY_SHARE, DISK_SHARE = 0.8, 0.5  # of what is free, for one arm that is given no limit
LEAST_LEFT = 0.1  # share of what was free at an arm's start that has to stay free, whoever takes it
_EXACT_SECONDS = 1.0  # between two exact counts of memory
_FOLDER_SHARE = 0.02  # of the time, at most, for counting a folder with many files
_FOLDER_SECONDS = 1.0  # between two counts at least


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that an arm may take to be built, and for one request, such as a window: of a job that was not profiled
    yet, see Arms.expect. Bytes that it may hold in memory, its workers included, and on disk in its own folder; None
    for a share of what is free when it starts."""

    build_seconds: float = 3600.0
    window_seconds: float = 600.0
    memory_bytes: int | None = None
    disk_bytes: int | None = None


def room_for(bytes_of_one: int, free_bytes: int) -> int:
    """How many arms of this size fit beside each other into what is free, with a rest for everything else."""
    return int(free_bytes * MEMORY_SHARE) // max(1, bytes_of_one)


class LimitCheck:
    """Of a process with all below it, and of a folder. most_bytes: the most memory that they held, shared pages counted
    in each."""

    def __init__(self, pid: int, folder: str, limits: Limits) -> None:
        free_bytes, free_disk = free_memory(), shutil.disk_usage(folder).free
        self._pid, self._folder = pid, folder
        self._least_memory, self._least_disk = int(free_bytes * LEAST_LEFT), int(free_disk * LEAST_LEFT)
        self._memory = int(free_bytes * MEMORY_SHARE) if limits.memory_bytes is None else limits.memory_bytes
        self._disk = int(free_disk * DISK_SHARE) if limits.disk_bytes is None else limits.disk_bytes
        self._exact_at = self._folder_at = 0.0
        self.most_bytes = 0

    def exceeded(self) -> tuple[Outcome, str] | None:
        """Why the arm has to end; None where it may continue."""
        if reason := self._too_much_memory():
            return Outcome.OUT_OF_MEMORY, reason
        if reason := self._too_much_disk():
            return Outcome.DISK_FULL, reason
        return None

    def _too_much_memory(self) -> str | None:
        family = all_of(self._pid)
        held = sum(map(resident_bytes, family))
        self.most_bytes = max(self.most_bytes, held)
        if held > self._memory and time.monotonic() >= self._exact_at:
            exactly = sum(map(proportional_bytes, family))
            if exactly > self._memory:
                return f"it holds {byte_size(exactly)} of memory, and {byte_size(self._memory)} are its limit"
            self._exact_at = time.monotonic() + _EXACT_SECONDS
        if (left := free_memory()) < self._least_memory:
            return (
                f"the machine has {byte_size(left)} of memory left, less than the {byte_size(self._least_memory)} that "
                f"must stay free; the arm holds {byte_size(held)}"
            )
        return None

    def _too_much_disk(self) -> str | None:
        with suppress(OSError):  # the job has deleted the folder
            left = shutil.disk_usage(self._folder).free
            if left < self._least_disk:
                return (
                    f"the disk of {self._folder} has {byte_size(left)} left, less than the "
                    f"{byte_size(self._least_disk)} that must stay free"
                )
        begin = time.monotonic()
        if begin < self._folder_at:
            return None
        written = folder_bytes(self._folder)
        now = time.monotonic()
        self._folder_at = now + max(_FOLDER_SECONDS, (now - begin) / _FOLDER_SHARE)
        if written > self._disk:
            return f"it wrote {byte_size(written)} into its folder, and {byte_size(self._disk)} are its limit"
        return None


def folder_bytes(folder: str) -> int:
    """That the files below a folder take on disk; links are not followed. What vanishes meanwhile is not counted."""
    taken = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                taken += os.lstat(os.path.join(path, name)).st_blocks * 512
    return taken
