"""The arms of the benchmark of seeding: the same samples, read by a loader that may not and by one that must seed them.

A sample is its own index, so little else is measured than what stands between a data set and a batch.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

from bench.endless import endless

from hasten.data.loading.batch_loader import TrainLoader
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.sources.job_data import source_of

SAMPLES, BATCH = 65_536, 256


class Numbers:
    """A map-style data set of which nothing is known: whatever it is, a sample of it may draw."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> int:
        return index


class SteadyNumbers(Numbers):
    """The same, which says of itself that it draws nothing."""

    steady_reason = "a sample is its own index"


def loader_of(dataset: Numbers) -> TrainLoader:
    """Shuffled, read in the training process: there its own random states are put back after every batch, too."""
    source = source_of(dataset, field="train")
    return TrainLoader(source, batch_size=BATCH, options=LoaderOptions(), seed=0, shuffle=True)


def seeded() -> Callable[[int], None]:
    return _batches_of(Numbers())


def unseeded() -> Callable[[int], None]:
    return _batches_of(SteadyNumbers())


def _batches_of(dataset: Numbers) -> Callable[[int], None]:
    loader, numbers = loader_of(dataset), count()
    return endless(lambda: loader.epoch(next(numbers)))
