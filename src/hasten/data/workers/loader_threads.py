"""Threads that read batches ahead, for readers whose work lets other threads run: decoders, files, copies.

Nothing is sent between processes: no start-up, no second copy of the data set, no shared memory. Each thread reads
whole batches, one after the other, and computes on its own core only. Answers come in the order of the requests.

The threads are daemons: one that hangs in a file system must not keep the process from ending, as a thread pool of the
standard library would.

A process that is forked while threads run inherits every lock that one of them holds (of an import, of a decoder, of
the data set), and nobody in it ever releases it. That happens where training is read by threads and evaluation by
worker processes. So loader threads pause, between two batches, while workers are forked.
"""

from __future__ import annotations

import atexit
import os
import sys
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Condition, Thread
from threading import enumerate as all_threads
from typing import Any

import torch

from hasten.errors import Hang

LOOK_SECONDS, END_SECONDS = 1.0, 1.0
_OPEN, _STARTED = weakref.WeakSet["LoaderThreads"](), weakref.WeakSet[Thread]()
_NAME = "hasten-loader-"
_FIX = "look at where they stand: a file system that does not answer, or a lock that is never released"


class _Gate:
    """All loader threads of this process pass it before every batch, unless it is shut."""

    def __init__(self) -> None:
        self._changed, self._reading, self._shut = Condition(), 0, 0

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._reading += 1

    def __exit__(self, *raised: object) -> None:
        with self._changed:
            self._reading -= 1
            self._changed.notify_all()

    @contextmanager
    def shut(self, seconds: float) -> Iterator[bool]:
        """The value is whether no thread reads any more, within so many seconds."""
        with self._changed:
            self._shut += 1
        try:
            with self._changed:
                paused = self._changed.wait_for(lambda: not self._reading, seconds)
            yield paused
        finally:
            with self._changed:
                self._shut -= 1
                self._changed.notify_all()


_GATE = _Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_GATE.__init__)  # the child has none of these threads, and may start its own


@contextmanager
def threads_paused() -> Iterator[None]:
    """While this process is forked: no loader thread reads. Raises Hang when one reads for longer than its limit."""
    seconds = max((each.limit() for each in [*_OPEN]), default=0.0)
    with _GATE.shut(seconds) as paused:
        if not paused:
            stacks = _stacks(thread for thread in all_threads() if thread.name.startswith(_NAME))
            what = f"no loader worker can be started: for {seconds:.0f} s a loader thread has been reading one batch"
            raise Hang(f"{what}\n{stacks}", fix=_FIX)
        yield


class _Order:
    """One request, and later its answer or what was raised instead."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.dropped = False  # nobody waits for it any more
        self.answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()


class LoaderThreads:
    """read: answers one request; called in many threads at once. ahead: batches that each thread keeps ready.

    limit: seconds to wait for one answer, called for each, after which Hang reports where the threads stand.
    """

    def __init__(self, read: Callable[[Any], Any], count: int, ahead: int, limit: Callable[[], float]) -> None:
        self._ahead, self.limit = count * (ahead + 1), limit
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        started: SimpleQueue[None] = SimpleQueue()
        compute_threads = torch.get_num_threads()
        # They do not refer to this object, so that they end with it where nobody closes it.
        self._threads = [
            Thread(target=_work, args=(self._orders, read, started), name=f"{_NAME}{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            started.get()
        torch.set_num_threads(compute_threads)  # each loader thread set one; that is also what later threads begin with
        self._end = weakref.finalize(self, _end, self._orders, count)
        _OPEN.add(self)
        _STARTED.update(self._threads)

    def answers(self, requests: Iterable[Any]) -> Iterator[Any]:
        """What `read` answers to each request, in order; raises what it raised. What is read ahead when the caller
        stops asking is dropped."""
        following, waiting = iter(requests), deque[_Order]()
        try:
            while True:
                for request in islice(following, self._ahead - len(waiting)):
                    waiting.append(_Order(request))
                    self._orders.put(waiting[-1])
                if not waiting:
                    return
                answer, error = self._wait(waiting.popleft())
                if error is not None:
                    raise error
                yield answer
                del answer  # the batch is the caller's alone while the next one is waited for
        finally:
            # Only these: an iterator that was left may be closed when the next epoch is being read.
            for order in waiting:
                order.dropped = True

    def close(self) -> None:
        """Let the threads end after their present batch. Who still waits for an answer gets none: see `limit`."""
        self._end()
        _join(self._threads)

    def _wait(self, order: _Order) -> tuple[Any, BaseException | None]:
        limit, waited = self.limit(), 0.0
        while waited < limit:
            looked = min(LOOK_SECONDS, limit - waited)
            started = time.monotonic()
            try:
                return order.answer.get(timeout=looked)
            except Empty:
                waited += min(time.monotonic() - started, 2 * looked)  # not the time that the process was stopped for
        raise Hang(
            f"no batch came from {len(self._threads)} loader threads for {limit:.0f} s\n{_stacks(self._threads)}",
            fix=_FIX,
        )


def _stacks(threads: Iterable[Thread]) -> str:
    frames = sys._current_frames()
    return "\n".join(
        f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
        for thread in threads
        if thread.ident in frames
    )


def _join(threads: Iterable[Thread]) -> None:
    """Wait a while for threads that are to end. One that is inside a library when its process ends aborts it."""
    until = time.monotonic() + END_SECONDS
    for thread in threads:
        thread.join(max(0.0, until - time.monotonic()))
        if not thread.is_alive():
            _STARTED.discard(thread)


@atexit.register
def _join_all() -> None:
    for each in [*_OPEN]:
        each.close()
    _join([*_STARTED])  # also those of an object that is gone, which may be at their last batch


def _work(orders: SimpleQueue[_Order | None], read: Callable[[Any], Any], started: SimpleQueue[None]) -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread's first call takes over the number that was set last: this one, by now
    started.put(None)
    while (order := orders.get()) is not None:
        if order.dropped:
            continue
        try:
            with _GATE:
                order.answer.put((read(order.request), None))
        except BaseException as error:
            order.answer.put((None, error))
        del order  # the batch is the caller's alone


def _end(orders: SimpleQueue[_Order | None], threads: int) -> None:
    with suppress(Empty):
        while True:
            orders.get_nowait()
    for _ in range(threads):
        orders.put(None)
