"""Loader worker processes: started, asked for batches, supervised, and ended.

A thread of the training process waits for the workers' answers and, beside them, for the sentinels that show their end.
It pins what comes where that is wanted, and puts it into a queue: taking an answer may block. Who asks for a batch
waits for this queue, with a time limit, and that wait raises:

* A worker ended: at the next batch that is asked for, with the signal and what is known of the cause.
* No batch came for longer than `Patience` allows: every worker is asked for its stacks, and all are killed.
"""

from __future__ import annotations

import multiprocessing
import os
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import islice
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import ForkingPickler
from multiprocessing.util import Finalize
from queue import Empty, SimpleQueue
from threading import Thread, current_thread
from typing import Any

import psutil
import torch
import torch.multiprocessing

from hasten.checkpoint.folders.process_folder import process_folder
from hasten.checkpoint.folders.shared_segments import forget_processes, remove_segments
from hasten.data.loading.data_errors import failed_arrival
from hasten.data.loading.device_transfer import pinned
from hasten.data.workers.hang_limit import Pace, Patience
from hasten.data.workers.process_stacks import ask
from hasten.data.workers.worker_faults import Worker, ended, hung
from hasten.data.workers.worker_main import Work, run_worker, send_all
from hasten.errors import HastenError
from hasten.facts.machine import free_shared_memory, killed_for_memory

LOOK_SECONDS = 1.0
END_SECONDS = 5.0


@dataclass(eq=False)
class _Arrived:
    """What the receiving thread shares with who asks for batches."""

    answers: SimpleQueue[tuple[int, int, Any]] = field(default_factory=SimpleQueue)  # worker, series, answer
    lost: bool = False  # a worker ended, or its answer could not be taken; nothing more comes
    error: Exception | None = None  # of an answer that could not be taken
    memory_bytes: dict[int, int] = field(default_factory=dict[int, int])  # resident, by pid, when last looked at


class Workers:
    """Worker processes that read for one feed. They start with the first request and serve one iterator at a time.
    ahead: batches that each keeps ready. pin: put answers into pinned memory."""

    def __init__(self, work: Work, *, ahead: int, patience: Patience, pin: bool = False) -> None:
        self._work, self._count, self._ahead, self._patience, self._pin = work, work.workers, ahead, patience, pin
        self._forks = multiprocessing.get_start_method() == "fork"
        self._processes = list[Any]()  # of multiprocessing.Process
        self._requests, self._answers, self._stacks = list[Connection](), list[Connection](), list[Connection]()
        self._outgoing = SimpleQueue[Any]()  # of (pipe, content), for the sending thread
        self._stop_reader, self._stop_writer = multiprocessing.Pipe(duplex=False)
        self._threads = list[Thread]()
        self._arrived = _Arrived()
        self._ready = [deque[Any]() for _ in range(work.workers)]
        self._series, self._given = 0, 0  # of requests; batches of the present one that were given
        self._closed = False
        self._killed_before = killed_for_memory()
        # Before multiprocessing itself, which would send them SIGTERM, which they pass by, and wait without limit.
        ending = (os.getpid(), self._processes, self._threads, self._outgoing, self._stop_writer)
        Finalize(self, _end_from, ending, exitpriority=0)

    def answers(self, requests: Iterable[Any], *, first_takes: int = 1) -> Iterator[Any]:
        """What the workers answer to each request, in order.

        first_takes: how many times longer than another the first answer may take.

        Raises OutOfMemory or DataFailed when a worker ended, Hang when no answer came, and UserCodeFailed for an answer
        that cannot be unpickled.
        """
        if not self._processes:
            self._start()
        self._series, self._given = self._series + 1, 0
        for ready in self._ready:  # of an earlier series
            ready.clear()
        series, due, pace = self._series, deque[int](), Pace(self._patience, first_takes)
        following = iter(requests)
        for number, request in enumerate(islice(following, self._count * self._ahead)):
            due.append(number % self._count)
            self._send(due[-1], (series, request))
        while due:
            worker = due.popleft()
            answer = self._take(worker, series, pace.limit_seconds)
            pace.came()
            self._given += 1
            for request in islice(following, 1):
                due.append(worker)
                self._send(worker, (series, request))
            yield answer
            del answer  # the batch is the caller's alone while the next one is waited for

    def end(self) -> None:
        """End the workers. No process, pipe, thread or segment of shared memory of theirs is left."""
        if self._closed:
            return
        self._closed = True
        for number in range(len(self._processes)):
            self._send(number, None)
        until = time.monotonic() + END_SECONDS
        for process in self._processes:
            process.join(max(0.0, until - time.monotonic()))
        _end_from(os.getpid(), self._processes, self._threads, self._outgoing, self._stop_writer)
        for pipe in (*self._requests, *self._answers, *self._stacks, self._stop_reader, self._stop_writer):
            pipe.close()
        if self._work.noted_in is not None:
            pids = {process.pid for process in self._processes}
            remove_segments(pids)
            forget_processes(self._work.noted_in, pids)

    def _start(self) -> None:
        if torch.multiprocessing.get_sharing_strategy() == "file_descriptor":  # else names last, and others use them
            self._work = replace(self._work, noted_in=process_folder())
        for number in range(self._count):
            self._start_one(number)
        # Not before: a process forks best with as few threads as can be.
        pin = _pin_here() if self._pin else None
        sentinels = [process.sentinel for process in self._processes]
        pids = [process.pid for process in self._processes]
        received = (self._arrived, self._answers, sentinels, pids, self._stop_reader, pin)
        self._threads += [
            Thread(target=send_all, args=(self._outgoing,), name="hasten-requests", daemon=True),
            Thread(target=_receive, args=received, name="hasten-batches", daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def _start_one(self, number: int) -> None:
        work = replace(self._work, number=number)
        asked, requests = multiprocessing.Pipe(duplex=False)
        answers, answered = multiprocessing.Pipe(duplex=False)
        stacks, stood = multiprocessing.Pipe(duplex=False)
        self._requests.append(requests)
        self._answers.append(answers)
        self._stacks.append(stacks)
        try:
            process = multiprocessing.Process(target=run_worker, args=(work, asked, answered, stood), daemon=True)
            process.start()
            self._processes.append(process)
        finally:
            for pipe in (asked, answered, stood):  # the worker's alone, so that its end closes them
                pipe.close()

    def _send(self, worker: int, message: Any) -> None:
        self._outgoing.put((self._requests[worker], ForkingPickler.dumps(message)))  # pyright: ignore[reportAttributeAccessIssue]: of Pickler

    def _take(self, worker: int, series: int, limit_seconds: Callable[[], float]) -> Any:
        """The next answer of one worker."""
        waited, limit, ready = 0.0, None, self._ready[worker]
        while True:
            if series != self._series or self._closed:
                raise RuntimeError("a later epoch is read by these workers, or they were ended")
            if self._arrived.lost:
                raise self._fault()
            if ready:
                return ready.popleft()
            limit = limit_seconds() if limit is None else limit
            looked, since = min(LOOK_SECONDS, limit / 4), time.monotonic()
            try:
                number, of_series, answer = self._arrived.answers.get(timeout=looked)
            except Empty:
                self._arrived.lost = any(process.exitcode is not None for process in self._processes)
            else:
                if of_series == series:
                    self._ready[number].append(answer)
                del answer
            # The time in which this process was stopped, or its machine asleep, does not count as waiting.
            waited += min(time.monotonic() - since, 2 * looked)
            if waited > limit and not ready and not self._arrived.lost:
                raise self._end_hung(waited)

    def _fault(self) -> HastenError:
        """Why nothing more comes: the first worker that ended; else what was raised where its answer was taken."""
        sentinels = [process.sentinel for process in self._processes]
        ending = wait(sentinels, END_SECONDS if isinstance(self._arrived.error, OSError | EOFError) else 0)
        for worker, process in zip(self._workers(), self._processes, strict=True):
            if process.exitcode is not None or process.sentinel in ending:
                process.join(END_SECONDS)  # its pipes close a moment before its exit code is there
                return ended(worker, process.exitcode, self._killed_before, killed_for_memory(), free_shared_memory())
        assert self._arrived.error is not None
        return failed_arrival(self._arrived.error, field=self._work.reader.field).to_raise()

    def _end_hung(self, waited_seconds: float) -> HastenError:
        asked = zip(self._workers(), self._stacks, strict=True)
        error = hung(waited_seconds, [(worker, ask(worker.pid, stacks)) for worker, stacks in asked])
        for process in self._processes:
            process.kill()
        return error

    def _workers(self) -> list[Worker]:
        return [
            Worker(
                what=f"Job.{self._work.reader.field}",
                number=number,
                workers=self._count,
                ahead=self._ahead,
                pid=process.pid,
                memory_bytes=self._arrived.memory_bytes.get(process.pid),
                answered=self._given,
                forked=self._forks,
            )
            for number, process in enumerate(self._processes)
        ]


def _receive(
    arrived: _Arrived,
    answers: Sequence[Connection],
    sentinels: Sequence[int],
    pids: Sequence[int],
    stop: Connection,
    pin: Callable[[Any], Any] | None,
) -> None:
    """In a thread: take every answer as it comes, until a worker ends or `stop` has something to read."""
    looked = time.monotonic()
    while True:
        ready = wait([stop, *answers, *sentinels], LOOK_SECONDS)
        if stop in ready:
            return
        try:
            for number, pipe in enumerate(answers):
                if pipe in ready:
                    series, answer = pipe.recv()
                    arrived.answers.put((number, series, answer if pin is None else pin(answer)))
                    del answer
        except Exception as error:  # whatever a class of the user's raises when it is unpickled
            arrived.error = error
        if arrived.error is not None or not set(ready).isdisjoint(sentinels):
            arrived.lost = True
            arrived.answers.put((0, 0, None))  # wakes who waits
            return
        if time.monotonic() - looked >= LOOK_SECONDS:
            looked = time.monotonic()
            arrived.memory_bytes.update(_memory_of(pids))


def _memory_of(pids: Sequence[int]) -> Iterator[tuple[int, int]]:
    for pid in pids:
        with suppress(psutil.Error):  # it has just ended
            if held := psutil.Process(pid).memory_info().rss:  # one that has just ended holds nothing
                yield pid, held


def _pin_here() -> Callable[[Any], Any] | None:
    """A function that pins for the device which is the present one now; None where there is none to pin for."""
    accelerator = torch.accelerator.current_accelerator(check_available=True)
    if accelerator is None or accelerator.type == "mps":  # where torch cannot pin
        return None
    device = torch.accelerator.current_device_index()

    def pin(answer: Any) -> Any:
        torch.accelerator.set_device_index(device)  # of this thread
        return pinned(answer)

    return pin


def _end_from(
    parent: int, processes: Sequence[Any], threads: Sequence[Thread], outgoing: SimpleQueue[Any], stop: Connection
) -> None:
    """Kill the workers that are still there, and end the threads; not from a process that was forked meanwhile.

    A thread that is inside of torch while the interpreter ends would abort the process.
    """
    if os.getpid() != parent:
        return
    for process in processes:
        if process.is_alive():
            process.kill()
            process.join(END_SECONDS)
    outgoing.put(None)
    with suppress(OSError):  # it was closed
        stop.send(None)
    for thread in threads:
        if thread is not current_thread():  # where garbage is collected
            thread.join(END_SECONDS)
