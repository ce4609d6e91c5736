"""Timed steps of a run: as the job takes them, part by part, with batches that are there already; and reading alone."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from itertools import pairwise
from statistics import median
from typing import Any, NamedTuple

import psutil
import torch

from hasten.doctor.profiling.repeated_batches import RepeatedBatches
from hasten.facts.profiles import RetainedMemory, Seconds
from hasten.measure.process_memory import page_faults
from hasten.techniques.setup import ProcessOptions
from hasten.training.run import Run
from hasten.training.setup.process_options import process_options
from hasten.training.step_parts.window import Phase

_LEAST_GROWTH = 16 << 10  # bytes a step: less is what an allocator does by itself
_PARTS = {Phase.FORWARD: "forward", Phase.BACKWARD: "backward", Phase.UPDATE: "optimizer"}


class StepTimes(NamedTuple):
    """Means of one step: seconds, those of them that it waited for data, and new pages of memory."""

    seconds: float
    waited: float
    new_pages: float


class TimedSteps:
    """Of one run. Steps continue where the ones before ended."""

    def __init__(self, run: Run) -> None:
        self._run, self._loader, self._process = run, run.loader, psutil.Process()
        self._free: RepeatedBatches | None = None
        self._read_samples = 0

    @property
    def ahead(self) -> int:
        """Batches that workers have ready before they are asked for."""
        options = self._run.setup.loader
        return options.workers * (options.prefetch_factor or 2)

    def take(self, steps: int) -> StepTimes:
        """So many steps. One more is taken before, and as many as workers have batches ready: those they read while
        the epoch starts, at no cost to a step."""
        run, first, ahead = self._run, self._run.steps, 0 if self._free is not None else self.ahead
        begin = waited = pages = 0.0
        with closing(run.batches()) as batches:
            for batch in batches:
                run.step(batch)
                if not run.window_closed:
                    continue
                taken = run.steps - first - (1 + ahead)
                if taken == 0:
                    self.settle()
                    waited, pages, begin = run.built.batches.wait_seconds, page_faults(), self._now()
                if taken == steps:
                    break
            self.settle()
            seconds = self._now() - begin
            waited, pages = run.built.batches.wait_seconds - waited, page_faults() - pages
        return StepTimes(seconds / steps, waited / steps, pages / steps)

    def read(self, steps: int) -> tuple[float, float]:
        """Seconds, and processor seconds, of reading the batches of one step alone.

        Caches may hold what steps have just read. So this reads an epoch that no step has come to, from its middle, and
        continues there each time.
        """
        loader, taken, begin, cpu = self._loader, 0, 0.0, 0.0
        number, of_an_epoch = self._run.epoch + 1, loader.steps_per_epoch
        start = (of_an_epoch // 2 + self._read_samples // loader.batch_size) % of_an_epoch if of_an_epoch else 0
        self._read_samples += (self.ahead + 1 + steps) * loader.batch_size
        while True:
            for each in loader.epoch(number, start):
                taken += each.last
                if taken == self.ahead + 1 and each.last:
                    cpu, begin = self.cpu_seconds(), time.perf_counter()
                if taken == self.ahead + 1 + steps:  # while the workers live: their processor time ends with them
                    return (time.perf_counter() - begin) / steps, (self.cpu_seconds() - cpu) / steps
            number, start = number + 1, 0

    @contextmanager
    def free(self, kept: list[Any]) -> Iterator[None]:
        """Inside, steps get these batches, which are there already."""
        self._free = RepeatedBatches(self._loader, kept, on_host=self._run.device.type == "cpu")
        self._run.built.batches.loader = self._free  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            self._run.built.batches.loader, self._free = self._loader, None
            self._run.skip_to_next_epoch()  # this epoch has passed its end

    def _now(self) -> float:
        """Seconds, without those of copying batches that are there already."""
        return time.perf_counter() - (self._free.seconds if self._free is not None else 0.0)

    def settle(self) -> None:
        """Wait for all that is queued on the device."""
        if self._run.device.type == "cuda":
            torch.cuda.synchronize(self._run.device)

    def cpu_seconds(self) -> float:
        """Of this process and of those that read for it."""
        ended = self._process.cpu_times()
        times = [time.process_time(), ended.children_user, ended.children_system]
        for child in self._process.children(recursive=True):
            try:
                times.append(sum(child.cpu_times()[:2]))
            except psutil.Error:  # it has ended, and is counted among those that have
                continue
        return sum(times)


class PartsClock:
    """Call it at each boundary inside a step. settle: waits for the device. seconds: of transfer, forward, backward and
    optimizer, of all steps so far."""

    def __init__(self, settle: Callable[[], None]) -> None:
        self.seconds = dict.fromkeys(("transfer", *_PARTS.values()), 0.0)
        self._settle, self._mark = settle, 0.0

    def __call__(self, phase: Phase) -> None:
        if phase is not Phase.PLACING:
            self._settle()
        now = time.perf_counter()
        if phase is Phase.PLACED:
            self.seconds["transfer"] += now - self._mark
        elif phase in _PARTS:
            self.seconds[_PARTS[phase]] += now - self._mark
        self._mark = time.perf_counter()


def retained_memory(run: Run, timed: TimedSteps, steps: int, times: int) -> RetainedMemory | None:
    """Steps where the C library keeps freed memory (a plan's `allocator = "keep_freed_memory"`), and where it does not:
    over the same batches, so many times each. None where the library has no such setting.

    To be measured last: the C library no longer adapts to the sizes that it sees once it was set.
    """
    epoch = run.epoch + 1

    def taken() -> float:
        run.built.batches.position.epoch = epoch - 1  # the same one each time
        run.skip_to_next_epoch()
        return timed.take(steps).seconds

    def all_taken() -> Seconds:
        taken()  # fills caches, and touches memory that is new with either setting
        return seconds_of([taken() for _ in range(times)])

    returned = all_taken()
    with process_options(ProcessOptions(keep_freed_memory=True)) as notices:
        return None if notices else RetainedMemory(kept=all_taken(), returned=returned)


def seconds_of(windows: Sequence[float]) -> Seconds:
    return Seconds(value=median(windows), low=min(windows), high=max(windows))


def growth(memory: Sequence[tuple[int, int]]) -> int | None:
    """Bytes a step at least, where memory grew in all rounds of the second half: setting up is over by then."""
    later = memory[len(memory) // 2 - 1 :]
    grown = [(b[1] - a[1]) / (b[0] - a[0]) for a, b in pairwise(later)]
    return int(min(grown)) if grown and min(grown) > _LEAST_GROWTH else None
