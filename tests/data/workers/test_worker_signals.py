"""The end of a worker is raised where a batch is asked for, and nowhere else; no signal handler is touched."""

from __future__ import annotations

import gc
import itertools
import os
import queue
import select
import signal
import threading
from typing import Any

import pytest
import torch

from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.workers.hang_limit import Patience
from hasten.errors import DataFailed
from support.data.broken_workers import Harmful, feed_of, nothing_left_behind, read, requests, worker_pids
from support.data.loaders import Drawing, loader_of

LONG = Patience(seconds=120)  # longer than a test may take: what passes was reported without waiting
TWO = LoaderOptions(workers=2, prefetch_factor=3)
TWO_STAYING = LoaderOptions(workers=2, prefetch_factor=3, persistent_workers=True)

both_ways = pytest.mark.parametrize("options", [TWO, TWO_STAYING], ids=["new workers", "staying workers"])


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left_behind():
        yield
        gc.collect()


class InTheStep:
    """Between two batches, where an optimizer's update swallows whatever is raised in it."""

    def __init__(self, kill):
        self.kill, self.surfaced = kill, []

    def step(self):
        self.killed()

    def in_a_request(self):
        pass

    def killed(self, *given):
        try:
            self.kill()
        except BaseException as error:
            self.surfaced.append(error)


class InASampler(InTheStep):
    """While a batch is asked for, in a sampler that catches whatever is raised in it."""

    def step(self):
        pass

    def in_a_request(self):
        self.killed()


class InACollection(InASampler):
    """While a batch is asked for, in the garbage collector's callback of a library."""

    def in_a_request(self):
        gc.callbacks.append(self.once)
        gc.collect()

    def once(self, phase, info):
        gc.callbacks.remove(self.once)
        self.killed()


class InAFinalizer(InASampler):
    """While a batch is asked for, in `__del__`, of which Python only prints what it raises."""

    def in_a_request(self):
        Dying(self.killed)


class Dying:
    def __init__(self, last):
        self.last = last

    def __del__(self):
        self.last()


PLACES, HANDLERS = (InTheStep, InACollection, InAFinalizer, InASampler), ("none", "the user's", "torch's")


@pytest.mark.fault("worker killed")
@pytest.mark.parametrize(
    ("place", "handler", "options"),
    [
        pytest.param(place, handler, options, marks=() if number in (0, 5, 13, 22) else pytest.mark.proof)
        for number, (place, handler, options) in enumerate(itertools.product(PLACES, HANDLERS, (TWO, TWO_STAYING)))
    ],
)
def test_where_a_worker_is_killed_nothing_is_raised_and_the_next_batch_names_it(place, handler, options):
    if handler == "torch's":
        list(torch.utils.data.DataLoader(Drawing(2), num_workers=1))  # it stays in place after the loader
    before = signal.getsignal(signal.SIGCHLD)
    if handler == "the user's":
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
    try:
        there = worker_pids()
        line = place(lambda: kill_and_wait((worker_pids() - there).pop()))
        feed = feed_of(Drawing(400), options, patience=LONG)
        answers = feed.answers(with_a_line_in(requests(400), 12, line.in_a_request))
        for _ in range(3):
            next(answers)
        line.step()
        with pytest.raises(DataFailed, match="killed by SIGKILL") as caught:
            list(answers)
        assert caught.value.exit_code == 11
        assert line.surfaced == []
        feed.close()
    finally:
        signal.signal(signal.SIGCHLD, before)


def with_a_line_in(requests, place, line):
    """The same requests; the line runs while one of them is asked for."""
    for number, request in enumerate(requests):
        if number == place:
            line()
        yield request


def kill_and_wait(pid):
    """Return when the process has ended, and its SIGCHLD was handled."""
    ends = os.pidfd_open(pid)
    os.kill(pid, signal.SIGKILL)
    select.select([ends], [], [])
    os.close(ends)
    sum(range(1000))


@both_ways
def test_the_handler_of_sigchld_stays_as_the_user_has_it(options):
    heard, users = [], lambda number, frame: heard.append(number)
    before = signal.signal(signal.SIGCHLD, users)
    try:
        loader = loader_of(Drawing(24), options=options)
        for number in range(2):
            for _ in loader.epoch(number):
                assert signal.getsignal(signal.SIGCHLD) is users
        loader.close()
        assert signal.getsignal(signal.SIGCHLD) is users
        assert heard  # of the workers' ends
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_workers_that_the_system_reaps_are_named_without_a_cause():
    before = signal.signal(signal.SIGCHLD, signal.SIG_IGN)
    try:
        with pytest.raises(DataFailed, match=r"loader worker 0 of 2 \(pid \d+\) ended"):
            read(feed_of(Harmful("kill"), TWO, patience=LONG), 24)
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_a_loader_of_the_users_own_is_watched_by_torch_as_ever():
    read(feed_of(Drawing(8), TWO), 8)
    data: Any = Harmful("kill", bad=0)
    own = torch.utils.data.DataLoader(data, batch_size=4, num_workers=1)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(own)


def test_in_another_thread_a_killed_worker_is_named_too():
    found = queue.SimpleQueue()

    def asking():
        try:
            read(feed_of(Harmful("kill"), TWO, patience=LONG), 24)
        except BaseException as error:
            found.put(error)

    thread = threading.Thread(target=asking)
    thread.start()
    error = found.get(timeout=150)
    assert isinstance(error, DataFailed)
    assert "killed by SIGKILL" in error.what
    thread.join()


def test_two_feeds_at_once_do_not_take_each_others_workers_for_their_own():
    training = feed_of(Harmful("kill", bad=12), LoaderOptions(workers=2, prefetch_factor=1), patience=LONG)
    answers = training.answers(requests(24))
    next(answers)
    next(answers)  # and the fourth batch, which kills its worker, is asked for
    assert len(read(feed_of(Drawing(24), TWO, patience=LONG), 24)) == 6  # an evaluation, while a worker dies
    with pytest.raises(DataFailed, match="SIGKILL"):
        list(answers)
    training.close()
