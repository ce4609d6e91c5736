"""What a sampler, or a batch sampler, of the user's own draws: a function of (seed, epoch), the same on every rank.

It runs with the three global generators seeded, and so are the generators that it holds itself; all are restored.
`set_epoch` is called where it exists. A sampler around another one, as its `sampler`, is treated with it. An epoch is
drawn whole and stored, 8 bytes a sample.

A run that resumes draws an epoch that its process has never drawn before. So the first epoch is drawn twice: a sampler
that draws something else then, because it shuffles its own list or counts its epochs, is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from typing import Any, NamedTuple

import numpy as np

from hasten.data.loading.data_errors import moment
from hasten.data.order.randomness import (
    derived,
    generator_state,
    is_generator,
    reseed,
    seed_generator,
    set_generator_state,
    undisturbed,
)
from hasten.data.order.sample_order import ORDER
from hasten.data.sources.sample_indices import rows_of, whole_numbers
from hasten.errors import RAISED, DataFailed, UserCodeFailed
from hasten.facts.job import describe
from hasten.users_code import reason_of, users_frame

EPOCHS_STORED = 2  # of a batch sampler: the first, by which a run is planned, and the present one
MOST_PASSES, MOST_SAMPLES = 10, 1 << 24  # over the data, or samples: what draws more of both does not end


class SampledOrder:
    """The order that a sampler draws. rows: how many there are for it to choose from; None where only the data set
    knows which indices it answers to."""

    def __init__(self, sampler: Any, count: int, seed: int, rows: int | None = None) -> None:
        self.count, self._sampler, self._seed, self._rows = count, sampler, seed, rows
        self._epoch: int | None = None
        self._drawn = np.empty(0, dtype=np.int64)

    def indices(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """Which samples stand at positions start to stop (exclusive): int64, shape (stop - start,), read-only. Raises
        DataFailed when the sampler draws another number of samples than its length says, or something that is no index
        of one, or not the same again; UserCodeFailed when it raises."""
        if self._epoch != epoch:
            found = self._draw(epoch)
            if self._epoch is None and not _is_torchs(self._sampler) and not np.array_equal(found, self._draw(epoch)):
                raise _not_the_same("sampler", epoch)
            self._drawn, self._epoch = found, epoch
            self._drawn.setflags(write=False)  # slices of it are given out
        return self._drawn[start:stop]

    def _draw(self, epoch: int) -> np.ndarray:
        # It may be endless.
        drawn = _drawn(self._sampler, "sampler", self._seed, epoch, lambda: [*islice(self._sampler, self.count + 1)])
        if len(drawn) != self.count:
            many = "more" if len(drawn) > self.count else len(drawn)
            raise DataFailed(
                f"the sampler drew {many} samples {moment(epoch)}, and its length says {self.count}",
                fix="return from the sampler's __len__ how many indices its __iter__ yields",
            )
        return _indices(drawn, self._rows, f"the sampler, {moment(epoch)},")


class Batches(NamedTuple):
    """Of one epoch: the indices of all batches, one after the other, and where each begins; the last one is the end."""

    indices: np.ndarray  # int64, shape (samples,)
    edges: np.ndarray  # int64, shape (batches + 1,)

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.edges)


class SampledBatches:
    """The batches that a batch sampler draws. samples: of the data set. rows: as of SampledOrder."""

    def __init__(self, sampler: Any, samples: int, rows: int | None = None) -> None:
        self._sampler, self._rows = sampler, rows
        self._most = max(MOST_PASSES * samples, MOST_SAMPLES)
        self._stored = dict[tuple[int, int], Batches]()  # by seed and epoch

    def drawn(self, seed: int, epoch: int) -> Batches:
        """Raises DataFailed for a batch sampler that does not end, or draws no batch, an empty one, something that is
        no index of a sample, or not the same again; UserCodeFailed when it raises."""
        if (seed, epoch) not in self._stored:
            found = self._draw(seed, epoch)
            if not self._stored and not all(map(np.array_equal, found, self._draw(seed, epoch))):
                raise _not_the_same("batch_sampler", epoch)
            while len(self._stored) >= EPOCHS_STORED:
                del self._stored[next(iter(self._stored))]
            self._stored[seed, epoch] = found
        return self._stored[seed, epoch]

    def _draw(self, seed: int, epoch: int) -> Batches:
        if hasattr(self._sampler, "__next__"):  # a generator, or another iterator
            what = f"the batch_sampler is {describe(self._sampler)}, which can be read only once"
            raise DataFailed(what, fix="give an object whose __iter__ starts from the beginning, as BatchSampler")
        lists = _drawn(self._sampler, "batch_sampler", seed, epoch, self._lists)
        sizes = [*map(len, lists)]
        if not lists or not min(sizes):
            what = f"draws an empty batch {moment(epoch)}, as number {sizes.index(0)}" if lists else "draws no batch"
            raise DataFailed(f"the batch_sampler {what}", fix="let it yield lists of one index or more")
        if sum(sizes) > self._most:
            what = f"the batch_sampler drew more than {self._most} samples {moment(epoch)}, and did not end"
            raise DataFailed(what, fix="let its __iter__ end, where an epoch shall end")
        indices = _indices(chain.from_iterable(lists), self._rows, f"the batch_sampler, {moment(epoch)},")
        indices.setflags(write=False)  # slices of it are given out
        return Batches(indices, np.cumsum([0, *sizes]))

    def _lists(self) -> list[list[Any]]:
        found, left = list[list[Any]](), self._most
        for batch in self._sampler:
            if not isinstance(batch, Iterable):
                what = f"the batch_sampler yields {describe(batch)}, which is not a list of indices"
                raise DataFailed(
                    what, fix="let it yield a list for each batch; or give it as `sampler`, with a batch_size"
                )
            found.append([*batch])
            left -= len(found[-1])
            if left < 0 or not found[-1]:
                break
        return found


class BatchOrder:
    """The order in which the batches of a batch sampler lie one after the other. An evaluation has those of the first
    epoch. count: samples of the first epoch."""

    def __init__(self, batches: SampledBatches, seed: int) -> None:
        self._batches, self._seed, self.count = batches, seed, len(batches.drawn(seed, 0).indices)

    def indices(self, epoch: int, start: int, stop: int) -> np.ndarray:
        """As of SampledOrder."""
        return self.batches(epoch).indices[start:stop]

    def batches(self, epoch: int) -> Batches:
        return self._batches.drawn(self._seed, max(epoch, 0))


def _drawn(sampler: Any, name: str, seed: int, epoch: int, draw: Callable[[], list[Any]]) -> list[Any]:
    """name: what it is, for an error."""
    with undisturbed(), _seeded(sampler, derived(seed, ORDER, epoch)):
        try:
            for each in _samplers(sampler):
                if hasattr(each, "set_epoch"):
                    each.set_epoch(max(epoch, 0))  # an evaluation has a number below zero, which no seed may have
            return draw()
        except DataFailed:
            raise
        except RAISED as error:
            what = f"the {name} raised {moment(epoch)}: {reason_of(error)}"
            raise UserCodeFailed(what, where=users_frame(error), fix=f"run it alone: list({name})") from error


def _samplers(sampler: Any) -> Iterator[Any]:
    """A sampler, the one that it is made around, and so on."""
    while sampler is not None:
        yield sampler
        sampler = getattr(sampler, "sampler", None)


@contextmanager
def _seeded(sampler: Any, number: int) -> Iterator[None]:
    """The global generators and those that the sampler holds; the latter are as they were afterwards."""
    held = [value for each in _samplers(sampler) for value in getattr(each, "__dict__", {}).values()]
    states = [(value, generator_state(value)) for value in held if is_generator(value)]
    reseed(number)
    for generator, _ in states:
        seed_generator(generator, number)
    try:
        yield
    finally:
        for generator, state in states:
            set_generator_state(generator, state)


def _indices(given: Iterable[Any], rows: int | None, whose: str) -> np.ndarray:
    return whole_numbers(given, whose=whose) if rows is None else rows_of(given, rows, whose=whose)


def _is_torchs(sampler: Any) -> bool:
    return type(sampler).__module__.startswith("torch.utils.data.")


def _not_the_same(name: str, epoch: int) -> DataFailed:
    return DataFailed(
        f"the {name} draws something else when epoch {max(epoch, 0) + 1} is drawn again, so a run could not resume",
        fix="in its __iter__ shuffle a copy, and use random numbers of a generator that it holds or of a global one; "
        "let set_epoch(epoch) count its epochs",
    )
