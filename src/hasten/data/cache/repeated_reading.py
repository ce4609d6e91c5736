"""Samples read with a proof that they are always the same: what a cache, memory or shards may keep of a data set.

Before each sample the global generators are seeded with the same number, and after it each must give the number that
follows: whoever drew, or seeded, moved it. What draws from a generator of its own is not seen so; therefore samples
spread over the data set are also read twice, under different seeds, and must be equal bit for bit. Neither proves it
for every sample and for ever; together they find what data sets do in practice.

A sample that cannot be read is told apart from these: whoever reads may go on without it.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np
import torch

from hasten.data.cache.sample_format import CannotKeep, Packed, difference, packed
from hasten.data.loading.bad_samples import may_be_replaced
from hasten.data.loading.data_errors import kind_of, reason_of, their_frame
from hasten.data.order.randomness import reseed, undisturbed
from hasten.errors import RAISED, DataFailed, HastenError, StorageFailed

SPREAD = 16  # samples read twice, and for the estimate
_SEEDS = (0x1BD11BDAA9FC1A22, 0x7C6D62A98B4F3E15)  # both halves of each unlike any seed that people write
_APART = (
    "leave out what draws, and add it around: hasten.Augmented(dataset, transform); what is random and always the same "
    "may draw from a generator of its own"
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Estimate:
    seconds: float  # to read all samples once
    bytes: int  # of all samples, packed


class Unreadable(Exception):
    """The data set raised when a sample was read, which another may stand in for (bad_samples.py).

    reason: what was raised, as it is told of a sample that is read where nothing is kept.
    """

    def __init__(self, index: int, raised: BaseException) -> None:
        super().__init__(index)
        self.index, self.reason, self._raised = index, reason_of(raised), raised

    def stop(self) -> NoReturn:
        """Raise what to end with where nothing stands in."""
        raise self._raised if isinstance(self._raised, HastenError) else _named(self.index, self._raised)

    def kept(self) -> DataFailed:
        """What to raise in place of the sample ever after, so that it is told in the same words as now."""
        raised = self._raised
        if isinstance(raised, HastenError):
            return DataFailed(raised.what, where=raised.where, fix=raised.fix)
        return DataFailed(self.reason, fix=f"look at {their_frame(raised)}; {_alone(self.index)}")


OnBad = Callable[[Unreadable], None]


def _named(index: int, raised: BaseException) -> HastenError:
    what = f"sample {index} could not be read: {reason_of(raised)}"
    error = kind_of(raised)(what, where=their_frame(raised), fix=_alone(index))
    error.__cause__ = raised
    return error


def _alone(index: int) -> str:
    return f"read it alone, as dataset[{index}]"


class SteadyReader:
    """Reads samples of a map-style data set inside `undisturbed()`.

    Raises DataFailed, naming the sample, for one that draws random numbers, is not the same twice or cannot be kept,
    and Unreadable for one that cannot be read. StorageFailed and a lack of memory are no fault of the sample's.

    kept_as: (index, sample) -> what is kept of a sample, where that is not the sample itself.
    """

    def __init__(self, dataset: Any, kept_as: Callable[[int, Any], Any] = lambda index, sample: sample) -> None:
        self.dataset, self._kept_as = dataset, kept_as
        self._next = [_after(seed) for seed in _SEEDS]

    def read(self, index: int, turn: int = 0) -> Any:
        """turn: the first or the second one, 0 or 1, of which each has its seed."""
        reseed(_SEEDS[turn])
        sample = self._read(index)
        if drew := self._who_drew(turn):
            raise _may_be_another(f"sample {index} draws", drew)
        return sample

    def packed(self, index: int, turn: int = 0) -> Packed:
        return self._packed(index, self.read(index, turn))

    def packed_unwatched(self, index: int) -> Packed:
        """For many threads at once, which share the generators: inside `watched()`."""
        return self._packed(index, self._read(index))

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Raises DataFailed where any of the samples that are read meanwhile draws random numbers."""
        reseed(_SEEDS[0])
        yield
        if drew := self._who_drew(0):
            raise _may_be_another("one of its samples draws", drew)

    def _read(self, index: int) -> Any:
        try:
            return self.dataset[index]
        except RAISED as error:
            if may_be_replaced(error):
                raise Unreadable(index, error) from None
            if isinstance(error, StorageFailed):
                raise
            raise _named(index, error) from error

    def _who_drew(self, turn: int) -> str | None:
        """Whose generator does not give the number that follows its seed."""
        names = zip(("torch", "NumPy", "Python"), _drawn(), self._next[turn], strict=True)
        return next((name for name, found, wanted in names if found != wanted), None)

    def _packed(self, index: int, read: Any) -> Packed:
        try:
            return packed(self._kept_as(index, read))
        except CannotKeep as error:
            raise DataFailed(f"sample {index}{error.place} {error.what}, which cannot be kept", fix=error.fix) from None

    def prove_spread(self, rows: np.ndarray | None = None, on_bad: OnBad | None = None) -> Estimate:
        """Read some samples twice, the first and the last among them; raises DataFailed when one is not the same, and
        when none of them can be read.

        rows: int64, of which samples they are taken; None: of all.
        on_bad: called with one that cannot be read, which is then left out; None: it is raised.
        """
        last = len(self.dataset if rows is None else rows) - 1
        places = {at * last // (SPREAD - 1) for at in range(SPREAD)}
        spread = sorted(places if rows is None else {int(rows[place]) for place in places})
        seconds, size, good, why = 0.0, 0, 0, ""
        for index in spread:
            started = time.perf_counter()
            try:
                once = self.packed(index)
                taken = time.perf_counter() - started
                _check_same(index, once, self.packed(index, 1))
            except Unreadable as bad:
                if on_bad is None:
                    raise
                on_bad(bad)
                why = f"sample {index}: {bad.reason}"
                continue
            seconds, size, good = seconds + taken, size + len(once.values), good + 1
        if not good:
            what = (
                f"none of {len(spread)} samples, spread over those that are wanted, could be read; the last was {why}"
            )
            raise DataFailed(what, fix="look at the path and at the files")
        share = len(self.dataset) / good
        return Estimate(seconds=seconds * share, bytes=int(size * share))


def _may_be_another(who_draws: str, generator: str) -> DataFailed:
    what = f"{who_draws} from {generator}'s global generator, so it may be another one each time"
    return DataFailed(what, fix=_APART)


def not_the_same(index: int, how: str) -> DataFailed:
    """The error for a sample that is another one when it is read again."""
    return DataFailed(f"sample {index}, read twice, is not the same: {how}", fix=_APART)


def _check_same(index: int, once: Packed, again: Packed) -> None:
    if once != again:
        raise not_the_same(index, difference(again.form, once.form) or "its values differ")


def _after(seed: int) -> tuple[float, float, float]:
    with undisturbed():
        reseed(seed)
        return _drawn()


def _drawn() -> tuple[float, float, float]:
    """The next number of each global generator."""
    generator = torch.default_generator  # named, and the device too, because a default device would draw from its own
    number = torch.rand((), dtype=torch.float64, generator=generator, device="cpu")
    return number.item(), np.random.random_sample(), random.random()
