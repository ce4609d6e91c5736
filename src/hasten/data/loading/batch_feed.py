"""Answers requests for microbatches in their order: read here, by worker processes, or by threads.

Two things that would stop worker processes are found before they start: a data set that cannot be pickled, where
workers do not start as a copy of the training process; and batches that do not fit into a small /dev/shm.

A batch that is needed before training, to measure it or to try a model on it, is read by a worker of its own. Read in
the training process, a data set that opens its file with the first sample would share the file's position with all
workers that are forked later.
"""

from __future__ import annotations

import multiprocessing
import weakref
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain
from typing import Any

from hasten.data.loading.batch_readers import Window, read_here
from hasten.data.loading.data_errors import Failed
from hasten.data.loading.device_transfer import pinned
from hasten.data.loading.loader_options import (
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
from hasten.data.workers.worker_main import Work
from hasten.data.workers.worker_processes import Workers
from hasten.errors import JobError, PlanError
from hasten.facts.formatting import byte_size
from hasten.facts.machine import SHARED_MEMORY, free_shared_memory, ranks_here

OWN_WORKER_TAKES = 10  # times as long as a batch of the training, at most


class Feed:
    """Answers requests in their order. `notices` says which of the options have no effect here. seed: the seeds in
    get_worker_info() are derived from it."""

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
        """What the reader answers to each request; raises what a Failed stands for. Raises JobError and PlanError for
        what cannot be read by workers, and what Workers.answers raises. Persistent workers serve one such iterator at a
        time."""
        if self._closed:
            raise RuntimeError("the loader was closed")
        answers = self._answers(requests)
        try:
            for answer in answers:
                if type(answer) is Failed:
                    raise answer.to_raise()
                yield answer
        finally:
            del answers  # ends the workers now: an error's traceback would keep them

    def answers_by_own_worker(self, requests: Iterable[Any]) -> Iterator[Any]:
        """The same answers; where the options have worker processes, each is read by one that ends with it."""
        for request in requests:
            (answer,) = self._by_own_worker(request) if self._has_own_worker() else read_here(self._reader, [request])
            if type(answer) is Failed:
                raise answer.to_raise()
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
        workers = self._staying or self._new(self._workers)
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

    def _new(self, count: int) -> Workers:
        source = self._source
        work = Work(
            reader=PickledReader(self._reader, source.field),
            dataset=source.dataset,
            users_init=source.worker_init,
            seed=self._seed,
            workers=count,
        )
        workers = Workers(work, ahead=self._ahead, patience=self._patience, pin=self._pin_memory)
        self._open.add(workers)
        return workers

    def check_before_start(self, first: Any) -> None:
        """Look for what would stop worker processes, before they start. Without worker processes nothing does. first:
        the first request. Raises JobError for what cannot be sent to workers, PlanError where /dev/shm is too small for
        their batches."""
        if not self._processes:
            return
        method = multiprocessing.get_start_method()
        if method != "fork" and (found := self._unsendable()) is not None:
            raise JobError(
                self._source.field,
                f"cannot be pickled for a loader worker (start method {method}): {found.path} is {found.what} "
                f"({found.reason})",
                "define functions and classes at module level, and open files and locks at the first "
                "sample; or set loader_workers = 0 (num_workers=0 in a DataLoader)",
            )
        free = free_shared_memory()
        if free is None or is_ample(free // ranks_here(), self._workers, self._ahead):
            return
        # The first window of a stream is as large as any, and the soonest read.
        first = first._replace(number=0) if isinstance(first, Window) else first
        (batch,) = self._by_own_worker(first)
        if type(batch) is not Failed:  # which is raised where it is read
            self._check_shared_memory(shared_bytes_of(batch), free // ranks_here())

    def _unsendable(self) -> Unsendable | None:
        source = self._source
        parts = (source.dataset, source.field), (source.collate, "collate"), (source.worker_init, "worker_init_fn")
        return next((found for what, path in parts if (found := unsendable_part(what, path)) is not None), None)

    def _has_own_worker(self) -> bool:
        # A daemon may have no children.
        if not self._processes or self._source.gathers or multiprocessing.current_process().daemon:
            return False
        return multiprocessing.get_start_method() == "fork" or self._unsendable() is None

    def _by_own_worker(self, request: Any) -> list[Any]:
        """The answer to one request, from a worker that ends with it."""
        workers = self._new(1)
        try:
            # The batch may be a global one, which the training reads in parts.
            return [*workers.answers([request], first_takes=OWN_WORKER_TAKES)]
        finally:
            workers.end()

    def _check_shared_memory(self, batch_bytes: int, free: int) -> None:
        ranks, held = ranks_here(), batches_held(self._workers, self._ahead)
        if held * batch_bytes <= free:
            return
        each = f" for each of {ranks} ranks" if ranks > 1 else ""
        whose = "" if self._source.field == "train" else f", for Job.{self._source.field}"
        raise PlanError(
            f"{self._workers} loader workers that keep {self._ahead} batches each hold {held} batches of "
            f"{byte_size(batch_bytes)} in shared memory (shm), together {byte_size(held * batch_bytes)}; "
            f"{byte_size(free)} are free in {SHARED_MEMORY}{each}",
            where=f"loader_workers{whose}",
            fix=f"use fewer loader workers or a smaller prefetch, or make {SHARED_MEMORY} larger (docker: --shm-size)",
        )


def _read(reader: Any, pin_memory: bool, request: Any) -> Any:
    answer = reader.__getitems__(request)
    return pinned(answer) if pin_memory else answer


def _check_options(options: LoaderOptions) -> None:
    what = "prefetch_factor" if options.prefetch_factor is not None else "persistent_workers"
    if options.workers == 0 and (options.prefetch_factor is not None or options.persistent_workers):
        raise PlanError(f"{what} is set, but there are 0 loader workers", fix=f"set workers, or remove {what}")


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
            fix = "set loader_workers = 0 (num_workers=0 in a DataLoader), or remove the model from the data set"
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
        notices.append(f"{source.field}: the DataLoader's worker_init_fn is not called: there are no loader processes")
    return workers, kind, pin_memory, tuple(notices)
