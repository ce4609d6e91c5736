"""Samples read with a proof that they are always the same: what a cache or memory may keep instead of reading again.

Before each sample the global generators are seeded with the same number, and after it each must give the number that
follows: whoever drew, or seeded, moved it. What draws from a generator of its own is not seen so; therefore samples
spread over the data set are also read twice, under different seeds, and must be equal bit for bit. Neither proves it
for every sample and for ever; together they find what data sets do in practice.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from hasten.data.cache_samples import CannotKeep, Packed, difference, packed
from hasten.data.failures import their_frame
from hasten.data.randomness import reseed, undisturbed
from hasten.errors import DataFailed, HastenError, UserCodeFailed

SPREAD = 16  # samples read twice, and for the estimate
_SEEDS = (0x1BD11BDAA9FC1A22, 0x7C6D62A98B4F3E15)  # both halves of each unlike any seed that people write
_APART = "leave out what draws, and add it around: hasten.Augmented(dataset, transform)"


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    seconds: float  # to read all samples once
    bytes: int  # of all samples, packed


class SteadyReader:
    """Reads samples of a map-style data set inside `undisturbed()`.

    Raises DataFailed, naming the sample, for one that draws random numbers, is not the same twice, cannot be kept or
    cannot be read; UserCodeFailed when the data set's code raised.
    """

    def __init__(self, dataset: Any) -> None:
        self.dataset = dataset
        self._next = [_after(seed) for seed in _SEEDS]

    def read(self, index: int, again: bool = False) -> Any:
        reseed(_SEEDS[again])
        try:
            sample = self.dataset[index]
        except HastenError:
            raise
        except Exception as error:
            kind = DataFailed if isinstance(error, OSError | EOFError) else UserCodeFailed
            what = f"sample {index} could not be read, to be kept: {type(error).__name__}: {error}"
            raise kind(what, where=their_frame(error), fix=f"read it alone, as dataset[{index}]") from error
        for name, found, wanted in zip(("torch", "NumPy", "Python"), _drawn(), self._next[again], strict=True):
            if found != wanted:
                what = f"sample {index} draws from {name}'s global generator, so it is another one each time"
                raise DataFailed(what, fix=_APART)
        return sample

    def packed(self, index: int, again: bool = False) -> Packed:
        sample = self.read(index, again)
        try:
            return packed(sample)
        except CannotKeep as error:
            raise DataFailed(f"sample {index}{error.place} {error.what}, which cannot be kept", fix=error.fix) from None

    def prove_spread(self) -> Estimate:
        """Read some samples twice, the first and the last among them; raises DataFailed when one is not the same."""
        count = len(self.dataset)
        spread = sorted({at * (count - 1) // max(SPREAD - 1, 1) for at in range(SPREAD)})
        seconds, size = 0.0, 0
        for index in spread:
            started = time.perf_counter()
            once = self.packed(index)
            seconds += time.perf_counter() - started
            size += len(once.values)
            check_same(index, once, self.packed(index, again=True))
        return Estimate(seconds=seconds / len(spread) * count, bytes=size * count // len(spread))


def check_same(index: int, once: Packed, again: Packed) -> None:
    if once != again:
        how = difference(again.form, once.form) or "its values differ"
        raise DataFailed(f"sample {index}, read twice, is not the same: {how}", fix=_APART)


def _after(seed: int) -> tuple[float, float, float]:
    with undisturbed():
        reseed(seed)
        return _drawn()


def _drawn() -> tuple[float, float, float]:
    """The next number of each global generator."""
    generator = torch.default_generator  # named, and the device too, because a default device would draw from its own
    number = torch.rand((), dtype=torch.float64, generator=generator, device="cpu")
    return number.item(), np.random.random_sample(), random.random()
