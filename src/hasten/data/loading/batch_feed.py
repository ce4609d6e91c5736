"""Answers requests for microbatches in their order: read here, by worker processes, or by threads.

A reader answers each request with a batch (see batch_readers.py). Two things that would stop worker processes are found
before they start: a data set that cannot be pickled, where workers do not start as a copy of the training process; and
batches that do not fit into /dev/shm. Only where that is small is a batch measured.

A batch that is needed before training, to measure it or to try a model on it, is read by a worker of its own. Read in
the training process, a data set that opens its file with the first sample would hand the open file to all workers that
are forked later, and each would move the others' position in it.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any

from hasten.data.loading.batch_readers import Window, read_here
from hasten.data.loading.data_errors import Failed
from hasten.data.loading.device_transfer import pinned
from hasten.data.loading.loader_options import (
    AMPLE_BATCH_BYTES,
    BATCHES_AHEAD,
    ON_HOST,
    LoaderOptions,
    Placement,
    batches_held,
    is_ample,
)
from hasten.data.sources.job_data import Source, why_not_in_threads
from hasten.data.workers.batch_pickling import PickledReader, Unsendable, shared_bytes_of, unsendable_part
from hasten.data.workers.hang_limit import Pace, Patience
from hasten.data.workers.loader_threads import LoaderThreads
from hasten.data.workers.worker_processes import Workers
from hasten.errors import JobError, PlanError
from hasten.facts.formatting import byte_size
from hasten.facts.machine import SHARED_MEMORY, free_shared_memory, ranks_here


class Feed:
    """Answers requests in their order. `notices` says which of the options have no effect here.

    seed: the seeds in get_worker_info() are derived from it.
    """

    def __init__(
        self,
        reader: Any,
        source: Source,
        options: LoaderOptions,
        *,
        placement: Placement = ON_HOST,
        seed: int = 0,
        patience: Patience | None = None,
    ) -> None:
        _check_options(options)
        self._workers, self._kind, self._pin_memory, self.notices = _usable(source, options, placement)
        self._processes = self._workers if self._kind == "processes" else 0
        self._reader, self._source, self._seed = reader, source, seed
        self._ahead = options.prefetch_factor or BATCHES_AHEAD
        self._persistent = options.persistent_workers
        self._patience = patience or Patience()
        self._closed, self._checked = False, False
        self._staying: Workers | None = None
        self._threads: LoaderThreads | None = None
        self._pace = Pace(self._patience)  # of the threads
        self._open: weakref.WeakSet[Workers] = weakref.WeakSet()

    def answers(self, requests: Iterable[Any]) -> Iterator[Any]:
        """What the reader answers to each request; raises what a Failed stands for.

        Raises JobError and PlanError for what cannot be read by workers, and what Workers.answers raises. Persistent
        workers serve one such iterator at a time.
        """
        if self._closed:
            raise RuntimeError("the loader was closed")
        answers = self._answers(requests)
        try:
            for answer in answers:
                if type(answer) is Failed:
                    raise answer.error()
                yield answer
        finally:
            del answers  # ends the workers now: an error's traceback would keep them

    def answers_apart(self, requests: Iterable[Any], takes: int = 1) -> Iterator[Any]:
        """The same answers; where the options have worker processes, each is read by one that ends with it.

        What such a worker cannot send is read here. takes: how many times longer than in training an answer may take.
        """
        for request in requests:
            answer = self._read_apart(request, _sendable, takes) if self._can_read_apart() else None
            if answer is None:
                (answer,) = read_here(self._reader, [request])
            if type(answer) is Failed:
                raise answer.error()
            yield answer

    def close(self) -> None:
        self._closed, self._staying = True, None
        for workers in list(self._open):
            workers.end()
        if self._threads is not None:
            self._threads.close()

    def _answers(self, requests: Iterable[Any]) -> Iterator[Any]:
        if self._workers and self._kind == "threads":
            return self._read_by_threads(requests)
        if self._workers:
            return self._read_by_workers(requests)
        answers = read_here(self._reader, requests)
        return map(pinned, answers) if self._pin_memory else answers

    def _read_by_threads(self, requests: Iterable[Any]) -> Iterator[Any]:
        self._pace.restart()
        if self._threads is None:
            read = partial(_read, self._reader, self._pin_memory)
            self._threads = LoaderThreads(read, self._workers, self._ahead, self._pace.limit_seconds)
        for answer in self._threads.answers(requests):
            self._pace.came()
            yield answer

    def _read_by_workers(self, requests: Iterable[Any]) -> Iterator[Any]:
        requests = iter(requests)
        first = next(requests, None)
        if first is None:
            return
        if not self._checked:
            self.check_before_start(first)
            self._checked = True
        # A stream is read from its beginning until the window at which it resumes.
        first_takes = 1 + first.number if isinstance(first, Window) else 1
        workers = self._staying or self._new(self._workers, PickledReader(self._reader, self._source.field))
        if self._persistent:
            self._staying = workers
        stays = False
        try:
            yield from workers.answers(chain([first], requests), first_takes=first_takes)
            stays = True
        except GeneratorExit:  # an epoch that was left early: persistent workers drop what they have read of it
            stays = True
            raise
        finally:
            if not (stays and self._persistent):
                self._staying = None
                workers.end()

    def _new(self, count: int, reader: PickledReader) -> Workers:
        workers = Workers(
            reader,
            workers=count,
            ahead=self._ahead,
            dataset=self._source.dataset,
            users_init=self._source.worker_init,
            seed=self._seed,
            patience=self._patience,
            pin=self._pin_memory,
        )
        self._open.add(workers)
        return workers

    # ── before the workers start ────────────────────────────────────────────────────────────────────────────────────

    def check_before_start(self, first: Any, beside: tuple[Feed, Any] | None = None) -> None:
        """Look for what would stop worker processes, before they start. Without worker processes nothing does.

        first: the first request. beside: another feed whose workers hold batches at the same time, and its first one.

        Raises JobError for what cannot be sent to workers, PlanError where /dev/shm is too small for their batches.
        """
        if not self._processes:
            return
        method = multiprocessing.get_start_method()
        if method != "fork" and (found := self._unsendable()) is not None:
            raise JobError(
                self._source.field,
                f"cannot be sent to a loader worker, which here starts by {method}: {found.path} is {found.what} "
                f"({found.reason})",
                "write functions and classes at the top of a module, and open files and locks with the first "
                "sample; or set loader_workers = 0 (num_workers=0 in a DataLoader)",
            )
        free = _own_shared_memory()
        others = 0 if beside is None else beside[0]._batches_held()
        if is_ample(None if free is None else free - others * AMPLE_BATCH_BYTES, self._workers, self._ahead):
            return
        batch = self._measured(first)
        if batch is not None:  # a batch that cannot be read raises its error where it is read
            self._check_shared_memory(batch, 0 if beside is None else beside[0]._bytes_held(beside[1]))

    def _batches_held(self) -> int:
        return batches_held(self._workers, self._ahead) if self._processes else 0

    def _bytes_held(self, first: Any) -> int:
        batch = self._measured(first) if self._processes else None
        return 0 if batch is None else self._batches_held() * batch

    def _measured(self, first: Any) -> int | None:
        """Bytes of shared memory that a batch takes; None for one that cannot be read."""
        # The first window of a stream is as large as any, and the soonest read.
        first = replace(first, number=0) if isinstance(first, Window) else first
        found = self._read_apart(first, _size_of)
        return found if isinstance(found, int) else None

    def _unsendable(self) -> Unsendable | None:
        source = self._source
        parts = (source.dataset, source.field), (source.collate, "collate"), (source.worker_init, "worker_init_fn")
        return next((found for what, path in parts if (found := unsendable_part(what, path)) is not None), None)

    def _can_read_apart(self) -> bool:
        # A daemon may have no children.
        if not self._processes or self._source.gathers or multiprocessing.current_process().daemon:
            return False
        return multiprocessing.get_start_method() == "fork" or self._unsendable() is None

    def _read_apart(self, request: Any, made_of_it: Callable[[Any], Any], takes: int = 1) -> Any:
        """What a function makes of the answer to one request, in a worker that ends with it."""
        workers = self._new(1, PickledReader(self._reader, self._source.field, made_of_it))
        try:
            (found,) = workers.answers([request], first_takes=takes)
        finally:
            workers.end()
        return found

    def _check_shared_memory(self, batch_bytes: int, beside_bytes: int) -> None:
        free, ranks, held = _own_shared_memory(), ranks_here(), self._batches_held()
        if free is None or held * batch_bytes <= free - beside_bytes:
            return
        each = f" for each of {ranks} ranks" if ranks > 1 else ""
        whose = "" if self._source.field == "train" else f", for Job.{self._source.field}"
        beside = f", beside {byte_size(beside_bytes)} that other workers hold" if beside_bytes else ""
        raise PlanError(
            f"{self._workers} loader workers that keep {self._ahead} batches each hold {held} batches of "
            f"{byte_size(batch_bytes)} in shared memory (shm), together {byte_size(held * batch_bytes)}"
            f"{beside}; {byte_size(free)} are free in {SHARED_MEMORY}{each}",
            where=f"loader_workers{whose}",
            fix=f"use fewer loader workers or a smaller prefetch, or make {SHARED_MEMORY} larger (docker: --shm-size)",
        )


def _read(reader: Any, pin_memory: bool, request: Any) -> Any:
    answer = reader.__getitems__(request)
    return pinned(answer) if pin_memory else answer


def _own_shared_memory() -> int | None:
    """Bytes that are free in /dev/shm for this rank, where those on this machine begin together."""
    free = free_shared_memory()
    return None if free is None else free // ranks_here()


def _size_of(batch: Any) -> int | None:
    return None if type(batch) is Failed else shared_bytes_of(batch)


def _sendable(answer: Any) -> Any:
    """The answer; None for one that cannot be sent to the training process, or that is a failure."""
    if type(answer) is Failed:
        return None
    try:
        size = shared_bytes_of(answer)
    except Exception:  # whatever a class of the user's raises when it is pickled
        return None
    free = free_shared_memory()
    return answer if free is None or size <= free else None


def _check_options(options: LoaderOptions) -> None:
    if options.workers == 0 and (options.prefetch_factor is not None or options.persistent_workers):
        what = "prefetch_factor" if options.prefetch_factor is not None else "persistent_workers"
        raise PlanError(f"{what} is set, and there are 0 loader workers", fix=f"set workers, or remove {what}")


def _usable(source: Source, options: LoaderOptions, placement: Placement) -> tuple[int, str, bool, tuple[str, ...]]:
    """Workers, their kind, pin_memory, and notices of the settings that have no effect here."""
    workers, kind, pin_memory, notices = options.workers, options.worker_kind, options.pin_memory, list[str]()
    if source.on_accelerator:
        if workers or pin_memory:
            why = f"{source.field} is on the device already: loader workers and pinned memory are not used for it"
            notices.append(why)
        return 0, kind, False, tuple(notices)
    if workers and source.why_not_ahead is not None:
        if source.field == "train":
            what = f"{source.why_not_ahead}; loader workers would use older weights"
            fix = "set loader_workers = 0 (num_workers=0 in a DataLoader), or let the data not hold the model"
            raise PlanError(what, where="loader_workers", fix=fix)
        notices.append(f"{source.field} is read without loader workers: {source.why_not_ahead}")
        workers = 0
    if pin_memory and not placement.accelerator:  # the machine may have one all the same
        notices.append("pin_memory is not used: this job copies its batches to no accelerator")
        pin_memory = False
    if workers and kind == "threads" and (why := why_not_in_threads(source)) is not None:
        # Training and evaluation are read with the same options, and only one of the two may be fit for threads.
        kind, workers = "processes", 0 if source.gathers else 1 if source.iterable else workers
        notices.append(f"{source.field} is read by {workers} worker processes instead of threads: {why}")
    if source.worker_init is not None and (not workers or kind == "threads"):
        why = "loader workers are threads" if workers else "there are no loader workers"
        notices.append(f"{source.field}: the DataLoader's worker_init_fn is not called: {why}")
    return workers, kind, pin_memory, tuple(notices)
