"""Threads that read batches ahead, for readers whose work lets other threads run: decoders, files, copies.

Each thread reads whole batches, one after the other, and computes on its own core only. Answers come in the order of
the requests. The threads are daemons: one that hangs in a file system must not keep the process from ending, as a
thread pool of the standard library would.
"""

from __future__ import annotations

import atexit
import sys
import time
import traceback
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from itertools import islice
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any

import torch

from hasten.errors import Hang

LOOK_SECONDS, END_SECONDS = 1.0, 1.0
_OPEN = weakref.WeakSet["LoaderThreads"]()


class _Order:
    """One request, and later its answer or what was raised instead."""

    def __init__(self, request: Any) -> None:
        self.request = request
        self.dropped = False  # nobody waits for it any more
        self.answer: SimpleQueue[tuple[Any, BaseException | None]] = SimpleQueue()


class LoaderThreads:
    """read: answers one request; called in many threads at once. ahead: batches that each thread keeps ready. limit:
    seconds to wait for one answer, called for each, after which Hang reports where the threads are."""

    def __init__(self, read: Callable[[Any], Any], count: int, ahead: int, limit: Callable[[], float]) -> None:
        self._ahead, self._limit = count * (ahead + 1), limit
        self._orders: SimpleQueue[_Order | None] = SimpleQueue()
        started: SimpleQueue[None] = SimpleQueue()
        compute_threads = torch.get_num_threads()
        # They do not refer to this object, so that they end with it where nobody closes it.
        self._threads = [
            Thread(target=_work, args=(self._orders, read, started), name=f"hasten-loader-{number}", daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()
        for _ in self._threads:
            started.get()
        torch.set_num_threads(compute_threads)  # each loader thread set one; that is also what later threads begin with
        self._end = weakref.finalize(self, _end, self._orders, count)
        _OPEN.add(self)

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
        """Let the threads end after their present batch, and wait a while for that: one that is inside a library when
        its process ends aborts it. Who still waits for an answer gets none: see `limit`."""
        self._end()
        until = time.monotonic() + END_SECONDS
        for thread in self._threads:
            thread.join(max(0.0, until - time.monotonic()))

    def _wait(self, order: _Order) -> tuple[Any, BaseException | None]:
        limit, waited = self._limit(), 0.0
        while waited < limit:
            looked = min(LOOK_SECONDS, limit - waited)
            started = time.monotonic()
            try:
                return order.answer.get(timeout=looked)
            except Empty:
                waited += min(time.monotonic() - started, 2 * looked)  # not the time that the process was stopped for
        frames = sys._current_frames()
        stacks = "\n".join(
            f"{thread.name}:\n{''.join(traceback.format_stack(frames[thread.ident]))}"
            for thread in self._threads
            if thread.ident in frames
        )
        raise Hang(
            f"no batch came from {len(self._threads)} loader threads for {limit:.0f} s\n{stacks}",
            fix="check where they are: a file system that does not answer, or a lock that is never released",
        )


@atexit.register
def _close_all() -> None:
    for each in [*_OPEN]:
        each.close()


def _work(orders: SimpleQueue[_Order | None], read: Callable[[Any], Any], started: SimpleQueue[None]) -> None:
    torch.set_num_threads(1)
    torch.get_num_threads()  # a thread's first call takes over the number that was set last: this one, by now
    started.put(None)
    while (order := orders.get()) is not None:
        if order.dropped:
            continue
        try:
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
