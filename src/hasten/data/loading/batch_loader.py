"""Batches of a training or an evaluation, on the host: which samples, in which order, cut how.

Global batch k of an epoch holds the order's positions k·B to (k + 1)·B; of a batch sampler of the user's own it holds
the k-th list that this draws. It does not depend on the number of ranks, the microbatch size, or anything in
LoaderOptions. So an epoch resumes at any step without a replay, and tuning the loader cannot change training.

The parts: sample_order.py says which sample stands where, batch_pieces.py cuts a global batch, batch_readers.py turns a
request into a batch in whichever process, batch_feed.py runs the workers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import count, pairwise, repeat
from typing import Any

from hasten.data.loading.bad_samples import Ledger, Repaired
from hasten.data.loading.batch_feed import Feed
from hasten.data.loading.batch_readers import End, Request, StreamReader, Window, reader_of
from hasten.data.loading.data_errors import moment
from hasten.data.loading.loader_options import ON_HOST, LoaderOptions, Placement
from hasten.data.order.batch_pieces import Microbatch, Piece, equal_pieces, pieces, share
from hasten.data.order.randomness import derived
from hasten.data.order.sample_order import Order, SampleOrder
from hasten.data.order.sampled_order import BatchOrder, SampledOrder
from hasten.data.sources.job_data import Source
from hasten.data.sources.sample_indices import in_words
from hasten.errors import DataFailed, JobError, PlanError

_Answers = Callable[[Iterable[Any]], Iterator[Any]]

EVALUATION_EPOCH = -1  # one that training never has, so evaluations are all alike and share no random number with it


class TrainLoader:
    """The microbatches of every epoch of a training.

    batch_size: samples in one optimizer step over all ranks; of a batch sampler, in the largest one.
    microbatch_size: at most so many samples in one forward and backward pass; None takes a rank's whole share at once.
    equal_parts: at least so many microbatches of one size in a step, whatever microbatch_size says; not for streams.
    shuffle, drop_last: the job's; the setting of a DataLoader overrides `shuffle`, and drops too.
    equal_epochs: refuse an epoch of a batch sampler that has more or fewer batches than the first epoch; else it may.
    replace_bad: replace samples that cannot be read, as bad_samples.py says.
    placement: where batches go, for data sets that can prepare for it.

    Raises JobError when the data cannot fill one batch, or is a stream for many ranks; PlanError for worker settings
    that do not go together.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        microbatch_size: int | None = None,
        equal_parts: int | None = None,
        options: LoaderOptions,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        equal_epochs: bool = True,
        replace_bad: bool = False,
        placement: Placement = ON_HOST,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        source = source.prepared(placement)
        self.batch_size, self._equal_epochs = batch_size, equal_epochs
        self._source, self.microbatch_size, self._equal_parts = source, microbatch_size, equal_parts
        self._rank, self._world_size = rank, world_size
        self._drop_last = drop_last or source.drop_last
        _check(source, options, world_size, replace_bad)
        if self._drop_last and source.batches is not None:
            was = f"is True, and the DataLoader in {source.field} has its own batch_sampler"
            raise JobError("drop_last", was, "remove it, and let the batch_sampler leave out what is too small")
        self._lists = None if source.batches is None else BatchOrder(source.batches, seed)
        self.steps_per_epoch = self._count_steps()
        if source.iterable:
            reader = StreamReader(source, seed, self.batch_size, microbatch_size, self._drop_last)
        else:
            self._order = self._lists or _order_of(source, seed, shuffle)
            reader = reader_of(source, seed, replace_bad)
        self.ledger = Ledger(source.field, source.count or 0)  # of a stream it stays empty
        self._feed = Feed(reader, source, options, placement=placement, seed=derived(seed, rank))
        self.notices = (*source.notices, *self._feed.notices)
        if self.dropped_per_epoch:
            self.notices += (f"drop_last drops {self.dropped_per_epoch} of {source.count} samples in every epoch",)

    @property
    def dropped_per_epoch(self) -> int | None:
        """Samples that drop_last drops in each epoch; None when unknown."""
        if not self._drop_last:
            return 0
        return None if self._source.count is None else self._source.count % self.batch_size

    @property
    def leaves_single(self) -> bool:
        """Whether an epoch's smaller last batch, or one of a batch sampler, has a microbatch of one sample, or of none,
        on some rank. False of a stream."""
        rest = 0 if self._drop_last or self._source.iterable else (self._source.count or 0) % self.batch_size
        sizes = {rest} - {0} if self._lists is None else {*self._lists.batches(0).sizes.tolist()}
        ranks = range(self._world_size)
        return any(piece.samples < 2 for size in sizes for rank in ranks for piece in self._pieces(size, rank))

    @property
    def first_share(self) -> int:
        """Samples of this rank in the first global batch."""
        if self._source.iterable:
            return min(self.batch_size, self._source.count or self.batch_size)
        _, parts = next(self._windows(0, 0))
        return sum(piece.samples for piece in parts)

    def epoch(self, number: int, start_step: int = 0) -> Iterator[Microbatch]:
        """The microbatches of one epoch, from one of its optimizer steps on. Raises UserCodeFailed or DataFailed, with
        the original exception as the cause, when a sample cannot be read, and DataFailed when a stream holds less than
        one batch, or another number of batches than its length says, or a batch sampler does not do as equal_epochs
        says."""
        return self._epoch(number, start_step, self._feed.answers)

    def first_batch(self) -> Any:
        """The first microbatch of all, to try a model on: read by a worker of its own, where the options have workers
        (see Feed.answers_by_own_worker). Raises what epoch() raises."""
        return next(self._epoch(0, 0, self._feed.answers_by_own_worker)).batch

    def _epoch(self, number: int, start_step: int, answers: _Answers) -> Iterator[Microbatch]:
        read = self._stream if self._source.iterable else self._map
        return read(number, start_step, answers)

    def samples_in_words(self, number: int, step: int) -> str:
        """Which samples a global batch holds: "epoch 3, samples 5, 17, 2 and 61 more of Job.train". Messages count
        epochs from 1."""
        first, stop = step * self.batch_size, (step + 1) * self.batch_size
        if self._source.iterable:
            return f"epoch {number + 1}, samples {first} to {stop - 1} of the stream Job.{self._source.field}"
        if self._lists is None:
            stop = min(stop, self._order.count)
        else:
            first, stop = self._lists.batches(number).edges[step : step + 2].tolist()
        indices = self._order.indices(number, first, stop).tolist()
        return f"epoch {number + 1}, {in_words(indices)} of Job.{self._source.field}"

    def replaced(self) -> list[str]:
        """A sentence for every sample that this rank has replaced since the last call."""
        return [*self.ledger.unreported()]

    def close(self) -> None:
        """End the worker processes. The loader cannot be used afterwards."""
        self._feed.close()

    def _map(self, number: int, start_step: int, answers: _Answers) -> Iterator[Microbatch]:
        batches = answers(self._requests(number, start_step))
        for _, parts in self._windows(number, start_step):
            for piece in parts:
                batch = next(batches)
                if type(batch) is Repaired:
                    self.ledger.take(batch.replaced)
                    batch = batch.batch
                yield Microbatch(batch, piece.samples, piece.last)

    def _requests(self, number: int, start_step: int) -> Iterator[Request]:
        for first, parts in self._windows(number, start_step):
            for piece in parts:
                start, samples = first + piece.start, piece.samples or 1  # of an empty piece one, which weighs nothing
                yield Request(number, self._order.indices(number, start, start + samples))

    def _windows(self, number: int, start_step: int) -> Iterator[tuple[int, tuple[Piece, ...]]]:
        """First position and this rank's pieces of every global batch of an epoch."""
        if self._lists is not None:
            edges = self._lists.batches(number).edges.tolist()
            self._check_number(len(edges) - 1, number)
            for first, stop in pairwise(edges[start_step:]):
                yield first, self._pieces(stop - first, self._rank)
            return
        size, samples = self.batch_size, self._source.count or 0
        whole = self._pieces(size, self._rank)
        for step in range(start_step, samples // size):
            yield step * size, whole
        rest = samples % size
        if rest and not self._drop_last and start_step <= samples // size:
            yield samples - rest, self._pieces(rest, self._rank)

    def _check_number(self, batches: int, number: int) -> None:
        if self._equal_epochs and batches != self.steps_per_epoch:
            what = f"its batch_sampler draws {batches} batches {moment(number)}, and {self.steps_per_epoch} in epoch 1"
            fix = "let it draw as many in every epoch; or give the run's length as Job.max_steps instead of epochs"
            raise self._failed(what, fix)

    def _pieces(self, size: int, rank: int) -> tuple[Piece, ...]:
        if self._equal_parts is None:
            return pieces(size, self.microbatch_size, rank, self._world_size)
        return equal_pieces(size, self._equal_parts, rank, self._world_size)

    def _stream(self, number: int, start_step: int, answers: _Answers) -> Iterator[Microbatch]:
        windows = answers(Window(number, step) for step in count(start_step))
        for step, found in enumerate(windows, start_step):
            if isinstance(found, End):
                self._check_end(found, number, step, start_step)
                return
            if step == self.steps_per_epoch:
                raise self._wrong_length(number, f"more than {step * self.batch_size} samples")
            for position, (samples, batch) in enumerate(found, start=1):
                yield Microbatch(batch, samples, position == len(found))

    def _check_end(self, end: End, number: int, step: int, start_step: int) -> None:
        if step == 0:
            what = f"epoch {number + 1} has {end.samples} samples, and a batch holds {self.batch_size}: it is 0 batches"
            raise self._failed(what, "check what the data set yields, or write drop_last=False")
        if -(-end.samples // self.batch_size) < start_step:
            what = f"epoch {number + 1} ended after {end.samples} samples, before step {start_step} of the resumed run"
            raise self._failed(what, "let the data set yield the same samples as before")
        if self.steps_per_epoch is not None and step < self.steps_per_epoch:
            raise self._wrong_length(number, f"{end.samples} samples")

    def _wrong_length(self, number: int, yielded: str) -> DataFailed:
        """The planned length, and every schedule made for it, comes from what the stream says of itself."""
        what = f"__len__ says {self._source.count} samples, and __iter__ yielded {yielded} {moment(number)}"
        return self._failed(
            what, "let __len__ return how many samples are yielded; or remove it, and write Job.max_steps"
        )

    def _failed(self, what: str, fix: str) -> DataFailed:
        return DataFailed(what, where=f"Job.{self._source.field}", fix=fix)

    def _count_steps(self) -> int | None:
        samples = self._source.count
        if self._lists is not None:
            return len(self._lists.batches(0).sizes)
        if samples is None:
            return None
        steps = samples // self.batch_size if self._drop_last else -(-samples // self.batch_size)
        if steps == 0:
            was = f"has {samples} samples, and a batch holds {self.batch_size}: with drop_last that is 0 batches"
            raise JobError(self._source.field, was, f"write drop_last=False, or a batch_size of {samples} or less")
        return steps


class EvaluationLoader:
    """All samples once, in their order, without padding; the same in every evaluation.

    Each rank reads a contiguous share, which may be empty; with a batch sampler of the user's own, a share of each of
    its batches. A DataLoader's own sampler decides what is read, its drop_last is ignored.

    equally_many: every rank gets the same number of batches: one whose share is read gets a sample that does not count.
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        options: LoaderOptions,
        seed: int,
        placement: Placement = ON_HOST,
        rank: int = 0,
        world_size: int = 1,
        equally_many: bool = False,
    ) -> None:
        source = source.prepared(placement)
        self.batch_size = batch_size
        self.notices = source.notices
        if source.drop_last:
            self.notices += (f"{source.field}: drop_last is ignored, an evaluation counts every sample",)
        self._source = source = replace(source, drop_last=False)
        if source.iterable:
            if options.workers > 1:  # they are set for the training's data
                self.notices += (f"{source.field}: 1 loader worker instead of {options.workers}: it is an iterable",)
                options = replace(options, workers=1, worker_kind="processes")
            _check(source, options, world_size)
            reader = StreamReader(source, seed, batch_size, None, False)
        else:
            lists = None if source.batches is None else BatchOrder(source.batches, seed)
            self._order = order = lists or _order_of(replace(source, shuffle=False), seed, False)
            if lists is None:
                self._spans = partial(_share_in_batches, order.count, batch_size, rank, world_size, equally_many)
            else:
                edges = lists.batches(0).edges.tolist()
                self._spans = partial(_shares_of_lists, edges, batch_size, rank, world_size)
            reader = reader_of(source, seed)
        self._feed = Feed(reader, source, options, placement=placement, seed=derived(seed, rank))
        self.notices += self._feed.notices

    def __iter__(self) -> Iterator[Microbatch]:
        """One evaluation. Raises what TrainLoader.epoch raises."""
        return self._stream() if self._source.iterable else self._map()

    def check_before_start(self) -> None:
        """Raise what the first evaluation would, for workers that cannot start."""
        first = Window(EVALUATION_EPOCH, 0) if self._source.iterable else next(self._requests(), None)
        if first is not None:
            self._feed.check_before_start(first)

    def close(self) -> None:
        """End the worker processes. The loader cannot be used afterwards."""
        self._feed.close()

    def _map(self) -> Iterator[Microbatch]:
        batches = self._feed.answers(self._requests())
        spans = self._spans()
        following = next(spans, None)
        while following is not None:
            (start, stop), following = following, next(spans, None)
            yield Microbatch(next(batches), stop - start, following is None)

    def _requests(self) -> Iterator[Request]:
        for start, stop in self._spans():
            yield Request(EVALUATION_EPOCH, self._order.indices(EVALUATION_EPOCH, start, max(stop, start + 1)))

    def _stream(self) -> Iterator[Microbatch]:
        windows = self._feed.answers(Window(EVALUATION_EPOCH, number) for number in count())
        following = next(windows)
        if isinstance(following, End):
            where = f"Job.{self._source.field}"
            raise DataFailed("it has 0 samples", where=where, fix="check what the data set yields")
        while not isinstance(following, End):
            (window,) = following
            following = next(windows)
            yield Microbatch(window[1], window[0], isinstance(following, End))


def _share_in_batches(
    samples: int, batch_size: int, rank: int, world_size: int, equally_many: bool
) -> Iterator[tuple[int, int]]:
    """Of every batch of an evaluation the first position, and the one behind the last that counts."""
    start, stop = share(samples, rank, world_size)
    largest = -(-samples // world_size) if equally_many else stop - start
    for first in range(start, stop, batch_size):
        yield first, min(first + batch_size, stop)
    yield from repeat((0, 0), -(-largest // batch_size) - -(-(stop - start) // batch_size))


def _shares_of_lists(edges: list[int], batch_size: int, rank: int, world_size: int) -> Iterator[tuple[int, int]]:
    """The same of the batches that a batch sampler draws: of each the rank's share, in parts of `batch_size`."""
    for first, stop in pairwise(edges):
        for piece in pieces(stop - first, batch_size, rank, world_size):
            yield first + piece.start, first + piece.stop


def _order_of(source: Source, seed: int, shuffle: bool) -> SampleOrder:
    assert source.count is not None
    if source.sampler is not None:
        return SampledOrder(source.sampler, source.count, seed, source.row_count)
    shuffled = shuffle if source.shuffle is None else source.shuffle
    if source.order is not None:
        return source.order(seed, shuffled)
    return Order(source.count, seed, shuffled)


def _check(source: Source, options: LoaderOptions, world_size: int, replace_bad: bool = False) -> None:
    if replace_bad and (source.iterable or source.sampler is not None or source.batches is not None):
        was = f'is "replace", and {source.field} is an iterable data set, or has its own sampler'
        raise JobError("on_bad_sample", was, 'give a map-style data set or a Subset, or write on_bad_sample="stop"')
    if source.iterable and world_size > 1:
        was = f"is an iterable data set, and each of {world_size} processes would read all of it"
        raise JobError(source.field, was, "give a map-style data set, or train with one process")
    if source.iterable and options.workers > 1:
        what = f"{options.workers} loader workers would each read all of the iterable data set"
        raise PlanError(what, where=f"Job.{source.field}", fix="set workers to 1 or 0, or give a map-style data set")
