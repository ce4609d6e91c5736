"""How much processor time other programs take while something is measured.

The kernel counts how long each core was busy and how long this process and its children ran; the difference is other
programs, and on a virtual machine its host ("steal"). They disturb a measurement when they take more than a few per
cent and no core is free for them.

Source: https://man7.org/linux/man-pages/man5/proc_stat.5.html
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import psutil

LEAST_CORES, LEAST_SHARE = 0.05, 0.01  # of all cores; below their sum other programs do not count
COUNTING_SECONDS = 0.04  # error of the kernel's counts, which are in ticks of 10 ms
FREE_SHARE = 0.2  # of all cores; with as many idle, other programs disturb nothing


@dataclass(frozen=True, kw_only=True, slots=True)
class Load:
    """Over `seconds`: how many of the `cores` usable here other programs kept busy, and how many were idle."""

    seconds: float
    cores: int
    others: float
    idle: float

    @property
    def share(self) -> float:
        """Of the processor, taken by other programs."""
        return min(self.others / self.cores, 1.0)

    @property
    def is_quiet(self) -> bool:
        """Whether other programs took no more than a few per cent."""
        allowed = (LEAST_CORES + LEAST_SHARE * self.cores) * self.seconds + COUNTING_SECONDS
        return self.others * self.seconds <= allowed

    @property
    def disturbs(self) -> bool:
        """Whether other programs took time that something here would have used."""
        return not self.is_quiet and self.idle < FREE_SHARE * self.cores


def busiest(loads: Sequence[Load]) -> Load:
    """The stretches that left few cores idle, pooled: only these show a load. All of them where none did."""
    full = [load for load in loads if load.idle < FREE_SHARE * load.cores] or loads
    seconds = sum(load.seconds for load in full)
    return Load(
        seconds=seconds,
        cores=full[0].cores,
        others=sum(load.others * load.seconds for load in full) / seconds,
        idle=sum(load.idle * load.seconds for load in full) / seconds,
    )


class LoadClock:
    """Counts from its construction. own_seconds: processor time of this process and its children so far."""

    def __init__(self, own_seconds: Callable[[], float]) -> None:
        self._own_seconds = own_seconds
        self._cores = _usable_cores()
        self._began, self._own_before = time.monotonic(), own_seconds()
        self._busy_before, self._idle_before = _busy_and_idle_seconds(self._cores)

    def load(self) -> Load:
        seconds = max(time.monotonic() - self._began, 1e-9)
        busy, idle = _busy_and_idle_seconds(self._cores)
        others = busy - self._busy_before - (self._own_seconds() - self._own_before)
        return Load(
            seconds=seconds,
            cores=len(self._cores),
            others=max(0.0, others / seconds),
            idle=max(0.0, (idle - self._idle_before) / seconds),
        )


def _usable_cores() -> list[int]:
    if hasattr(os, "sched_getaffinity"):
        return sorted(os.sched_getaffinity(0))
    return list(range(os.cpu_count() or 1))


def _busy_and_idle_seconds(cores: list[int]) -> tuple[float, float]:
    """Of these cores together, since boot."""
    of_all = psutil.cpu_times(percpu=True)
    busy = idle = 0.0
    for times in (of_all[core] for core in cores if core < len(of_all)):  # one that was switched off has no line
        busy += times.user + times.system + getattr(times, "nice", 0.0) + getattr(times, "steal", 0.0)
        idle += times.idle + getattr(times, "iowait", 0.0)
    return busy, idle
