"""Stretches of a run's steps, timed from where what begins an epoch is over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import pairwise
from statistics import fmean, median, quantiles, stdev
from typing import Any, NamedTuple

import psutil
import torch

from hasten.doctor.profiling.repeated_batches import FreeLoading
from hasten.facts.profiles import Seconds
from hasten.measure.process_memory import page_faults
from hasten.training.run import Run


class Stretch(NamedTuple):
    """Of one step of it: seconds, what of them was waited for data, and pages of memory that were new. single: seconds
    of each step."""

    seconds: float
    waited: float
    new_pages: float
    single: tuple[float, ...]


class Stretches:
    """Of one run. Whatever is taken goes on where the last one ended."""

    def __init__(self, run: Run) -> None:
        self._run, self._loader, self._process = run, run.loader, psutil.Process()
        self._free: FreeLoading | None = None
        self._read_samples = 0

    @property
    def ahead(self) -> int:
        """Batches that workers have ready before they are asked for."""
        options = self._run.setup.loader
        return options.workers * (options.prefetch_factor or 2)

    def take(self, steps: int) -> Stretch:
        """So many steps. One more is taken before, and as many as workers have batches ready: they start with the
        epoch, and what they read until then costs no step anything."""
        run, first, ahead = self._run, self._run.steps, 0 if self._free is not None else self.ahead
        begin = waited = pages = 0.0
        ends = list[float]()
        with closing(run.batches()) as batches:
            for batch in batches:
                run.step(batch)
                if not run.window_closed:
                    continue
                taken = run.steps - first - (1 + ahead)
                if taken == 0:
                    self.settle()
                    waited, pages, begin = run.built.batches.wait_seconds, page_faults(), self._now()
                if taken >= 0:
                    ends.append(self._now())
                if taken == steps:
                    break
            self.settle()
            seconds = self._now() - begin
            waited, pages = run.built.batches.wait_seconds - waited, page_faults() - pages
        single = tuple(after - before for before, after in pairwise(ends))
        return Stretch(seconds / steps, waited / steps, pages / steps, single)

    def read(self, steps: int, loader: Any = None) -> tuple[float, float]:
        """Seconds, and those of the processor, of reading one step's batches and doing nothing with them. loader: that
        reads; None is the run's own.

        What the steps have just read may still be at hand. So it is read in an epoch that no step has come to, from
        its middle on, and further on each time.
        """
        loader = loader or self._loader
        taken, begin, cpu, number, of_an_epoch = 0, 0.0, 0.0, self._run.epoch + 1, loader.steps_per_epoch
        start = (of_an_epoch // 2 + self._read_samples // loader.batch_size) % of_an_epoch if of_an_epoch else 0
        self._read_samples += (self.ahead + 1 + steps) * loader.batch_size
        while True:
            for each in loader.epoch(number, start):
                taken += each.last
                if taken == self.ahead + 1 and each.last:
                    cpu, begin = self.cpu_seconds(), time.perf_counter()
                if taken == self.ahead + 1 + steps:  # while the workers live: their time goes with them
                    return (time.perf_counter() - begin) / steps, (self.cpu_seconds() - cpu) / steps
            number, start = number + 1, 0

    @contextmanager
    def free(self, kept: list[Any]) -> Iterator[None]:
        """Loading costs nothing inside."""
        self._free = FreeLoading(self._loader, kept, on_host=self._run.device.type == "cpu")
        self._run.built.batches.loader = self._free  # pyright: ignore[reportAttributeAccessIssue]
        try:
            yield
        finally:
            self._run.built.batches.loader, self._free = self._loader, None
            self._run.skip_to_next_epoch()  # the present one has gone on behind its end

    def _now(self) -> float:
        """Seconds, in which copies of batches that are there already take none."""
        return time.perf_counter() - (self._free.seconds if self._free is not None else 0.0)

    def settle(self) -> None:
        """Wait until the device has done what it was asked for."""
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


def with_fastest(stretches: Seconds, single: Sequence[float], windows: int) -> Seconds:
    """Of steps that take so many windows in turn: the low end is what the fastest tenth of each window's steps take.
    The fastest of all steps would be those of the shortest batch."""
    each = [quantiles(one, n=10, method="inclusive")[0] for one in _by_window(single, windows) if len(one) > 1]
    return replace(stretches, low=min(stretches.low, fmean(each))) if each else stretches


def sampling_error(single: Sequence[float], windows: int) -> float:
    """Two standard errors of what steps take, as the windows are a few of many that may be unlike."""
    middles = [median(each) for each in _by_window(single, windows) if each]
    return 2 * stdev(middles) / len(middles) ** 0.5 if len(middles) > 1 else 0.0


def _by_window(single: Sequence[float], windows: int) -> list[Sequence[float]]:
    return [single[number::windows] for number in range(windows)]
