"""Workers that die or hang are reported with the cause where a batch is asked for, and nothing of them is left."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import re
import signal
import threading
import time

import psutil
import pytest

from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.workers import worker_processes as workers
from hasten.data.workers.hang_limit import Pace, Patience
from hasten.errors import DataFailed, Hang, OutOfMemory
from support.data.broken_workers import (
    Harmful,
    circle,
    feed_of,
    nothing_left_behind,
    open_files,
    read,
    requests,
    worker_pids,
)
from support.data.loaders import Drawing, content, epoch_of, loader_of

SHORT = Patience(seconds=3, first_seconds=120, batches=1)
STOPPED = Patience(seconds=3, first_seconds=10, batches=1)  # a stopped worker cannot hand over its first batch either
LONG = Patience(seconds=120)  # longer than a test may take: what passes was told of without waiting
TWO = LoaderOptions(workers=2, prefetch_factor=3)
TWO_STAYING = LoaderOptions(workers=2, prefetch_factor=3, persistent_workers=True)

both_ways = pytest.mark.parametrize("options", [TWO, TWO_STAYING], ids=["new workers", "staying workers"])


@pytest.fixture(autouse=True)
def _nothing_is_left():
    with nothing_left_behind():
        yield
        gc.collect()


def failure_of(harm, kind, options=TWO, patience=LONG):
    feed = feed_of(Harmful(harm), options, patience=patience)
    with pytest.raises(kind) as caught:
        read(feed, 24)
    feed.close()
    return caught.value


@both_ways
@pytest.mark.fault("worker killed")
def test_a_killed_worker_is_named_with_its_signal_and_advice(options):
    error = failure_of("kill", DataFailed, options)
    assert error.exit_code == 11
    assert error.where == "Job.train"
    assert "loader worker 0 of 2 (pid " in error.what
    assert "killed by SIGKILL" in error.what
    assert "fewer loader workers than 2, a prefetch below 3" in error.fix


@pytest.mark.fault("worker killed")
def test_a_kill_that_the_kernel_counts_as_one_for_memory_is_full_memory(monkeypatch):
    counts = iter([5, 7])
    monkeypatch.setattr(workers, "killed_for_memory", lambda: next(counts))
    error = failure_of("kill", OutOfMemory)
    assert error.exit_code == 12
    assert "has killed 2 process(es) for memory" in error.what


@pytest.mark.parametrize(("harm", "code"), [("exit", 3), ("leave", 0)])
def test_a_worker_that_ends_by_itself_is_told_with_its_exit_code(harm, code):
    error = failure_of(harm, DataFailed)
    assert f"ended by itself with exit code {code}" in error.what


@pytest.mark.fault("worker killed")
def test_the_memory_of_a_dead_worker_is_named_when_it_was_looked_at(monkeypatch):
    class Waiting(Harmful):
        def __getitem__(self, index):
            if index == self.bad:
                looked.wait(60)
            return super().__getitem__(index)

    looked = multiprocessing.Event()
    note_looks(monkeypatch, looked)
    feed = feed_of(Waiting("kill"), TWO, patience=LONG)
    with pytest.raises(DataFailed, match=r"holding [\d,.]+ [MG]iB when last looked at"):
        read(feed, 24)


def note_looks(monkeypatch, looked, looks=1):
    """Let the training process look at the memory of its workers often, and set an event after so many looks."""
    memory, seen = psutil.Process.memory_info, itertools.count(1)

    def noted(process):
        found = memory(process)
        if next(seen) >= 2 * looks:  # of two workers
            looked.set()
        return found

    monkeypatch.setattr(psutil.Process, "memory_info", noted)
    monkeypatch.setattr(workers, "LOOK_SECONDS", 0.02)


def test_a_worker_whose_pipes_another_process_still_holds_is_named_all_the_same():
    """What a worker has forked lives on after it, and nothing that a worker's end would close is closed."""

    class Forking(Harmful):
        def __getitem__(self, index):
            if index == self.bad:
                child = os.fork()
                if child == 0:
                    signal.pause()
                children.put(child)
            return super().__getitem__(index)

    children = multiprocessing.SimpleQueue()
    feed = feed_of(Forking("kill"), TWO, patience=LONG)
    try:
        with pytest.raises(DataFailed, match="killed by SIGKILL"):
            read(feed, 24)
    finally:
        os.kill(children.get(), signal.SIGKILL)


@pytest.mark.parametrize("options", [pytest.param(TWO, marks=pytest.mark.proof), TWO_STAYING])
@pytest.mark.fault("worker hangs")
def test_a_worker_in_a_circle_is_told_with_its_line(options):
    error = failure_of("circle", Hang, options, SHORT)
    assert error.exit_code == 14
    first, second, *_ = error.what.splitlines()
    assert re.match(r"no batch came for \d+ s; the 2 loader workers were asked and ended", first)
    assert "is at:" in second
    line = circle.__code__.co_firstlineno
    assert any(f"broken_workers.py:{line + n} in circle" in error.fix for n in (1, 2))
    assert "broken_workers.py" in error.what
    assert "has nothing to do" in error.what.splitlines()[-1]


def test_a_stream_that_is_entered_far_inside_has_more_time_for_its_first_batch():
    assert Pace(Patience()).limit_seconds() == 60
    pace = Pace(Patience(), first_takes=1 + 9)
    assert pace.limit_seconds() == 600
    pace.came()
    assert pace.limit_seconds() == 60


@pytest.mark.fault("worker hangs")
def test_a_stopped_worker_cannot_answer_and_that_is_said():
    error = failure_of("stop", Hang, TWO, STOPPED)
    assert "is stopped (by SIGSTOP, or by a debugger) and cannot say where" in error.what


class Clock:
    """In place of a module's time."""

    def __init__(self, jumps=0.0):
        self.ahead, self.jumps = 0.0, jumps

    def monotonic(self):
        self.ahead += self.jumps
        return time.monotonic() + self.ahead


def test_a_long_step_is_no_hang(monkeypatch):
    clock = Clock()
    monkeypatch.setattr(workers, "time", clock)
    monkeypatch.setattr("hasten.data.workers.hang_limit.time", clock)
    answers = feed_of(Drawing(24), TWO, patience=Patience(seconds=60)).answers(requests(24))
    for _ in answers:
        clock.ahead += 1000


def test_time_in_which_nobody_could_look_is_no_wait(monkeypatch):
    """The training process was stopped, or its machine slept: its workers stood still as well."""

    class Late(Drawing):
        def __getitem__(self, index):
            looked.wait(60)
            return super().__getitem__(index)

    looked = multiprocessing.Event()
    note_looks(monkeypatch, looked, looks=5)
    monkeypatch.setattr(workers, "time", Clock(jumps=1000))
    assert len(read(feed_of(Late(24), TWO, patience=Patience(first_seconds=60)), 24)) == 6


@pytest.mark.fault("worker hangs")
def test_usual_batches_make_more_patience_than_the_least():
    assert Patience().limit(0.0) == 60
    assert Patience().limit(2.9) == 60
    assert Patience().limit(10.0) == 200


def test_the_usual_time_is_the_median_from_one_answer_to_the_next(monkeypatch):
    times = iter([0.0, 1.0, 3.0, 103.0])
    monkeypatch.setattr("hasten.data.workers.hang_limit.time.monotonic", lambda: next(times))
    pace = Pace(Patience(seconds=0.0, batches=1))
    limits = []
    for _ in range(4):
        pace.came()
        limits.append(pace.limit_seconds())
    monkeypatch.undo()
    assert limits == [0, 1, 1.5, 2]


@both_ways
def test_no_process_and_no_file_is_left_after_epochs(options):
    loader = loader_of(Drawing(24), options=options)
    list(loader.epoch(0))
    loader.close()
    gc.collect()
    before = open_files()
    for number in range(4):
        loader = loader_of(Drawing(24), options=options)
        list(loader.epoch(number))
        list(loader.epoch(number + 1))
        loader.close()
    gc.collect()
    assert open_files() < before + 10  # torch closes its queues in threads of their own, some of them later
    assert not [thread for thread in threading.enumerate() if thread.name in ("hasten-batches", "hasten-requests")]


@both_ways
def test_closing_ends_the_workers_of_an_epoch_that_is_held_in_its_middle(options):
    before = worker_pids()
    loader = loader_of(Drawing(40), options=options)
    held = loader.epoch(0)
    next(held)
    assert len(worker_pids() - before) == 2
    loader.close()
    assert worker_pids() == before
    del held


@both_ways
def test_an_interrupt_in_the_training_process_leaves_no_worker(options):
    before = worker_pids()
    loader = loader_of(Drawing(40), options=options)
    with pytest.raises(KeyboardInterrupt):
        for _ in loader.epoch(0):
            signal.raise_signal(signal.SIGINT)
    loader.close()
    assert worker_pids() == before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGXCPU])
def test_a_signal_to_end_that_all_receive_is_not_the_workers_business(number):
    expected = content(epoch_of(Drawing(40)))
    loader = loader_of(Drawing(40), options=TWO)
    batches = loader.epoch(0)
    found = [next(batches), next(batches)]  # of each worker
    for pid in worker_pids():
        os.kill(pid, number)  # as a terminal or a scheduler does; what runs may be finished
    found += list(batches)
    assert content(found) == expected
    loader.close()


def test_an_epoch_begun_after_a_death_is_whole():
    feed = feed_of(Harmful("kill", count=48, bad=40), TWO_STAYING, patience=LONG)
    with pytest.raises(DataFailed):
        read(feed, 48)
    assert len(read(feed, 24)) == 6
    feed.close()
