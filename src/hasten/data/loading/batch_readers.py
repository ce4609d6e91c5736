"""One request in, one batch out, in whichever process reads.

A request holds all that its batch depends on, and a reader seeds every sample, so it makes no difference where and when
it is read.

| data | seeded for | with |
|---|---|---|
| columns | nothing: none of the user's code runs | – |
| samples read one by one | each sample; nothing where they cannot draw (steady_reason) | seed, epoch, index |
| a data set that reads many at once by its own __getitems__ | each microbatch | seed, epoch, first index |
| a data set that is given its random numbers (`fill`, as ImageFolder) | nothing | the same |
| a stream | each sample | seed, epoch, position in the stream |
| the job's own collate function | each microbatch | seed, epoch, its indices (of a stream, its first position) |
"""

from __future__ import annotations

import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from itertools import count, islice
from typing import Any, NamedTuple

import numpy as np
from torch.utils.data import default_collate, get_worker_info

from hasten.data.loading.bad_samples import Repaired, Replaced, may_be_replaced, replacements
from hasten.data.loading.data_errors import Failed, failed_batch, failed_sample
from hasten.data.order.batch_pieces import pieces
from hasten.data.order.randomness import derived, reseed, sample_seed, undisturbed
from hasten.data.sources.augmented import begin_epoch, steady_reason, takes_draws
from hasten.data.sources.column_gather import Gather
from hasten.data.sources.job_data import Source, reads_batches
from hasten.errors import RAISED
from hasten.users_code import reason_of

_COLLATING = int.from_bytes(b"collate", "big")


class Request(NamedTuple):
    """One microbatch of a map-style data set."""

    epoch: int
    indices: np.ndarray  # int64, shape (samples,)


class Window(NamedTuple):
    """One global batch of a stream: its epoch, and how many global batches come before it."""

    epoch: int
    number: int


class End(NamedTuple):
    """In place of a window: the stream has no more of them, after so many samples in all."""

    samples: int


def reader_of(source: Source, seed: int, replace_bad: bool = False) -> GatherReader | BatchReader | SampleReader:
    """replace_bad: replace samples that cannot be read, as bad_samples.py says, for which they are read one by one."""
    source = replace(source, sampler=None, batches=None)  # requests hold indices, and not every sampler can be pickled
    if source.gathers:
        return GatherReader(source)
    if reads_batches(source.dataset) and not replace_bad:
        return BatchReader(source, seed)
    return SampleReader(source, seed, replace_bad)


def read_here(reader: Any, requests: Iterable[Any]) -> Iterator[Any]:
    """What a reader answers to each request, read in this process."""
    return reader.answers(requests) if isinstance(reader, GatherReader) else map(reader.__getitems__, requests)


class GatherReader:
    def __init__(self, source: Source) -> None:
        assert source.columns is not None
        self._gather, self._rows = Gather(source.columns), source.rows

    def __getitems__(self, request: Request) -> Any:
        return self._gather(self._rows_of(request))

    def answers(self, requests: Iterable[Request]) -> Iterator[Any]:
        """What it answers to each of many requests, in their order."""
        return self._gather.each(map(self._rows_of, requests))

    def _rows_of(self, request: Request) -> np.ndarray:
        return request.indices if self._rows is None else self._rows[request.indices]


class SampleReader:
    def __init__(self, source: Source, seed: int, replace_bad: bool = False) -> None:
        self._source, self._seed, self._replace_bad = source, seed, replace_bad
        self._epoch = -1  # that the data set was set to
        given = takes_draws(source.dataset) and source.collate is default_collate
        self._way = _GivenDraws(source) if given else _Seeded(source, seed)

    def __getitems__(self, request: Request) -> Any:
        indices = request.indices.tolist()
        numbers = sample_seed(self._seed, request.epoch, request.indices.astype(np.uint64))
        batch, draws = self._way.empty(len(indices)), self._way.draws(numbers)
        replaced = list[Replaced]()
        with nullcontext() if self._way.draws_nothing else _own_randomness():
            for place, index in enumerate(indices):
                try:
                    if request.epoch != self._epoch:
                        begin_epoch(self._source.dataset, request.epoch)
                        self._epoch = request.epoch
                    self._way.fill(batch, place, index, draws[place])
                except RAISED as error:
                    bad = self._replace_bad and may_be_replaced(error)
                    by_another = self._replaced(batch, place, index, draws[place], error) if bad else None
                    if by_another is None:
                        return failed_sample(error, self._source.field, request.epoch, index, int(numbers[place]))
                    replaced.append(by_another)
            found = self._way.finished(batch, request)
        return Repaired(found, tuple(replaced)) if replaced and not isinstance(found, Failed) else found

    def _replaced(self, batch: Any, place: int, index: int, draws: Any, error: BaseException) -> Replaced | None:
        """Fill the place with another sample, read with the random numbers of the one that it replaces."""
        for other in replacements(self._seed, index, len(self._source.dataset)):
            try:
                self._way.fill(batch, place, other, draws)
            except RAISED as another:
                # The first error is the one that is raised if no sample can be read.
                error.add_note(f"sample {other}, which would replace it, cannot be read either: {reason_of(another)}")
            else:
                return Replaced(index, other, reason_of(error))
        return None


class _Seeded:
    """Samples that draw from the global generators, which are seeded before each where it may draw."""

    def __init__(self, source: Source, seed: int) -> None:
        self._source, self._seed, self._steady = source, seed, steady_reason(source.dataset) is not None
        self.draws_nothing = self._steady and source.collate is default_collate

    def empty(self, samples: int) -> list[Any]:
        return [None] * samples

    def draws(self, numbers: np.ndarray) -> list[int]:
        return numbers.tolist()

    def fill(self, batch: list[Any], place: int, index: int, number: int) -> None:
        if not self._steady:
            reseed(number)
        batch[place] = self._source.dataset[index]

    def finished(self, batch: list[Any], request: Request) -> Any:
        return _collated(self._source, self._seed, batch, request.epoch, request.indices)


class _GivenDraws:
    """Samples of a data set that is given their random numbers, and collates a batch itself."""

    draws_nothing = True

    def __init__(self, source: Source) -> None:
        self.empty, self.draws, self.fill = source.dataset.filling, source.dataset.draws, source.dataset.fill

    def finished(self, batch: Any, request: Request) -> Any:
        return batch.batch()


class BatchReader:
    def __init__(self, source: Source, seed: int) -> None:
        self._source, self._seed, self._epoch = source, seed, -1

    def __getitems__(self, request: Request) -> Any:
        indices, field = request.indices.tolist(), self._source.field
        seed = int(sample_seed(self._seed, request.epoch, indices[0]))
        with _own_randomness():
            try:
                if request.epoch != self._epoch:
                    begin_epoch(self._source.dataset, request.epoch)
                    self._epoch = request.epoch
                reseed(seed)
                samples = self._source.dataset.__getitems__(indices)
            except RAISED as error:
                return failed_batch(error, field, request.epoch, indices[0], len(indices), own_code=True, seed=seed)
            return _collated(self._source, self._seed, samples, request.epoch, request.indices)


class StreamReader:
    """Reads an iterable data set window by window. Any other window than the next one starts the epoch from its
    beginning and reads up to there."""

    def __init__(
        self, source: Source, seed: int, batch_size: int, microbatch_size: int | None, drop_last: bool
    ) -> None:
        self._source, self._seed = source, seed
        self._batch_size, self._microbatch_size, self._drop_last = batch_size, microbatch_size, drop_last
        self._stream: Iterator[Any] = iter(())
        self._position = 0  # in the epoch, of the sample that is read
        self._next: Window | None = None  # the one that is read next without a new start

    def __getitems__(self, window: Window) -> list[tuple[int, Any]] | End | Failed:
        """The window's microbatches, each with its number of samples."""
        with _own_randomness():
            try:
                if window != self._next:
                    self._stream = self._samples(window.epoch)
                    deque(islice(self._stream, window.number * self._batch_size), maxlen=0)
                samples = list(islice(self._stream, self._batch_size))
            except RAISED as error:
                self._next = None
                seed = self._seed_at(window.epoch, self._position)
                return failed_sample(error, self._source.field, window.epoch, self._position, seed)
            self._next = Window(window.epoch, window.number + 1)
            if not samples or (self._drop_last and len(samples) < self._batch_size):
                return End(self._position)
            return self._microbatches(window, samples)

    def _samples(self, epoch: int) -> Iterator[Any]:
        reseed(sample_seed(self._seed, epoch, 0))
        begin_epoch(self._source.dataset, epoch)
        stream = iter(self._source.dataset)
        for self._position in count():
            reseed(self._seed_at(epoch, self._position))
            try:
                sample = next(stream)
            except StopIteration:
                return
            yield sample

    def _seed_at(self, epoch: int, position: int) -> int:
        return sample_seed(self._seed, epoch, position + 1)  # 0 is for what __iter__ itself draws

    def _microbatches(self, window: Window, samples: list[Any]) -> list[tuple[int, Any]] | Failed:
        found: list[tuple[int, Any]] = []
        for piece in pieces(len(samples), self._microbatch_size):
            first = np.array([window.number * self._batch_size + piece.start])
            part = samples[piece.start : piece.stop]
            batch = _collated(self._source, self._seed, part, window.epoch, first)
            if isinstance(batch, Failed):
                return batch
            found.append((piece.samples, batch))
        return found


def _collated(source: Source, seed: int, samples: list[Any], epoch: int, indices: np.ndarray) -> Any:
    """indices: int64, of the samples, or the position of the first; the random numbers of collate follow from them."""
    own_code, first, own_seed = source.collate is not default_collate, int(indices[0]), None
    if own_code:  # it may draw, and how much its samples have drawn depends on where they were read
        own_seed = derived(seed, _COLLATING, epoch, first, zlib.crc32(indices.tobytes()))
        reseed(own_seed)
    try:
        return source.collate(samples)
    except RAISED as error:
        return failed_batch(error, source.field, epoch, first, len(samples), own_code=own_code, seed=own_seed)


def _own_randomness() -> AbstractContextManager[None]:
    """The generators of the training process are restored; those of a worker are its own."""
    return undisturbed() if get_worker_info() is None else nullcontext()
