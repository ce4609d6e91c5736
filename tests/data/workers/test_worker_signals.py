"""The end of a worker is raised where a batch is asked for, and nowhere else; no signal handler is touched."""

from __future__ import annotations

import gc
import os
import queue
import select
import signal
import threading

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


@pytest.mark.fault("worker killed")
@pytest.mark.parametrize("handler", ["none", "the user's", "torch's"])
@both_ways
def test_where_a_worker_is_killed_nothing_is_raised_and_the_next_batch_names_it(handler, options):
    if handler == "torch's":
        list(torch.utils.data.DataLoader(Drawing(2), num_workers=1))  # it stays in place after the loader
    before = signal.getsignal(signal.SIGCHLD)
    if handler == "the user's":
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
    try:
        there = worker_pids()
        feed = feed_of(Drawing(400), options, patience=LONG)
        answers = feed.answers(requests(400))
        for _ in range(3):
            next(answers)
        kill_and_wait((worker_pids() - there).pop())
        with pytest.raises(DataFailed, match="killed by SIGKILL") as caught:
            list(answers)
        assert caught.value.exit_code == 11
        feed.close()
    finally:
        signal.signal(signal.SIGCHLD, before)


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
