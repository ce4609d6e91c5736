"""What an arm may take of the machine, and the check of what is left.

The process that waits for an arm's answer checks ten times a second. An arm ends when less than a share of what was
free at its start is left of the machine's memory, or of the disk of its folder: whoever has taken it, the arm is the
one to end before the machine is full.
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass

from hasten.facts.formatting import byte_size
from hasten.facts.machine import free_memory
from hasten.tune.trials.process_tree import all_of, resident_bytes
from hasten.tune.trials.trial_outcome import Outcome

LEAST_MEMORY, LEAST_DISK = 0.2, 0.5  # shares of what was free at an arm's start


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that an arm may take to be built, and for one request, such as a window: of a job that was not profiled
    yet, see Arms.expect."""

    build_seconds: float = 3600.0
    window_seconds: float = 600.0


def room_for(bytes_of_one: int, free_bytes: int) -> int:
    """How many arms of this size fit beside each other into what is free, with a rest for everything else."""
    return int(free_bytes * (1 - LEAST_MEMORY)) // max(1, bytes_of_one)


class LimitCheck:
    """Of a process with all below it, and of its folder."""

    def __init__(self, pid: int, folder: str) -> None:
        self._pid, self._folder = pid, folder
        self._least_memory = int(free_memory() * LEAST_MEMORY)
        self._least_disk = int(shutil.disk_usage(folder).free * LEAST_DISK)

    @property
    def held_bytes(self) -> int:
        """Of memory; pages that several processes share are counted in each."""
        return sum(map(resident_bytes, all_of(self._pid)))

    def exceeded(self) -> tuple[Outcome, str] | None:
        """Why the arm has to end; None where it may continue."""
        if (left := free_memory()) < self._least_memory:
            least = byte_size(self._least_memory)
            what = f"the machine has {byte_size(left)} of memory left, and {least} must stay free"
            return Outcome.OUT_OF_MEMORY, f"{what}; the arm holds {byte_size(self.held_bytes)}"
        with suppress(OSError):  # the job has deleted the folder
            if (left := shutil.disk_usage(self._folder).free) < self._least_disk:
                least = byte_size(self._least_disk)
                return Outcome.DISK_FULL, f"its disk has {byte_size(left)} left, and {least} must stay free"
        return None
