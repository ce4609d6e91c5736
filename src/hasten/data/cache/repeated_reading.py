"""Samples read with a check that they are always the same: what a cache, memory or shards may store of a data set.

The global generators are seeded before each sample and must give the same next number after it: a sample that draws, or
seeds, changes it. Draws from a generator of the data set's own are found by reading samples spread over the data set
twice, under different seeds. Neither proves it for every sample.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hasten.data.cache.sample_format import Packed, packed
from hasten.data.loading.bad_samples import may_be_replaced
from hasten.data.loading.data_errors import kind_of
from hasten.data.order.randomness import reseed, undisturbed
from hasten.errors import RAISED, DataFailed, HastenError
from hasten.users_code import reason_of, users_frame

SPREAD = 16  # samples read twice, and for the estimate
_SEEDS = (0x1BD11BDAA9FC1A22, 0x7C6D62A98B4F3E15)  # both halves of each unlike any seed that people write
_APART = "move random operations into a transform around it: hasten.Augmented(dataset, transform)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    seconds: float  # to read all samples once
    bytes: int  # of all samples, packed


class Unreadable(Exception):
    """The data set raised when a sample was read, and another sample may replace it (bad_samples.py)."""

    def __init__(self, index: int, raised: BaseException) -> None:
        super().__init__(index)
        self.index, self.reason, self._raised = index, reason_of(raised), raised

    def error(self) -> HastenError:
        """The error to raise where no sample replaces it."""
        raised = self._raised
        if isinstance(raised, HastenError):
            return raised
        what = f"sample {self.index} could not be read: {self.reason}"
        error = kind_of(raised)(what, where=users_frame(raised), fix=f"read it alone, as dataset[{self.index}]")
        error.__cause__ = raised
        return error


class SteadyReader:
    """Reads samples of a map-style data set inside `undisturbed()`.

    Raises DataFailed, naming the sample, for one that draws random numbers, is not the same twice or cannot be stored,
    and Unreadable for one that cannot be read. StorageFailed and a lack of memory are not errors of the sample.

    stored_as: (index, sample) -> what is stored of a sample, where that is not the sample itself.
    """

    def __init__(self, dataset: Any, stored_as: Callable[[int, Any], Any] = lambda index, sample: sample) -> None:
        self.dataset, self._stored_as = dataset, stored_as
        self._next = [_after(seed) for seed in _SEEDS]

    def read(self, index: int, turn: int = 0) -> Any:
        """turn: the first or the second reading, 0 or 1; each has a seed of its own."""
        reseed(_SEEDS[turn])
        sample = self._read(index)
        self._check_draws(f"sample {index} draws", turn)
        return sample

    def packed(self, index: int, turn: int = 0) -> Packed:
        return packed(self._stored_as(index, self.read(index, turn)), f"sample {index}")

    def packed_unseeded(self, index: int) -> Packed:
        """For many threads at once, which share the generators: inside `seeded_once()`."""
        return packed(self._stored_as(index, self._read(index)), f"sample {index}")

    @contextmanager
    def seeded_once(self) -> Iterator[None]:
        """Raises DataFailed where any of the samples that are read inside draws random numbers."""
        reseed(_SEEDS[0])
        yield
        self._check_draws("one of its samples draws", 0)

    def check_spread(self) -> Estimate:
        """Read some samples twice, the first and the last among them; raises DataFailed when one is not the same."""
        last = len(self.dataset) - 1
        spread = sorted({at * last // (SPREAD - 1) for at in range(SPREAD)})
        seconds, size = 0.0, 0
        for index in spread:
            started = time.perf_counter()
            once = self.packed(index)
            seconds, size = seconds + time.perf_counter() - started, size + len(once.values)
            again = self.packed(index, 1)
            if once != again:
                raise DataFailed(f"sample {index} differs when it is read twice", fix=_APART)
        share = len(self.dataset) / len(spread)
        return Estimate(seconds=seconds * share, bytes=int(size * share))

    def _read(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except RAISED as error:
            bad = Unreadable(index, error)
            if may_be_replaced(error):
                raise bad from None
            raise bad.error() from error

    def _check_draws(self, who_draws: str, turn: int) -> None:
        """Raises DataFailed where a generator does not give the number that follows its seed."""
        for name, found, wanted in zip(("torch", "NumPy", "Python"), _drawn(), self._next[turn], strict=True):
            if found != wanted:
                what = f"{who_draws} from {name}'s global generator, so it may differ each time"
                raise DataFailed(what, fix=_APART)


def _after(seed: int) -> tuple[float, float, float]:
    with undisturbed():
        reseed(seed)
        return _drawn()


def _drawn() -> tuple[float, float, float]:
    """The next number of each global generator."""
    generator = torch.default_generator  # named, and the device too, because a default device would draw from its own
    number = torch.rand((), dtype=torch.float64, generator=generator, device="cpu")
    return number.item(), np.random.random_sample(), random.random()
