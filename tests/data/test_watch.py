"""Workers that die or hang are told of, with the cause, and nothing of them is left."""

from __future__ import annotations

import gc
import itertools
import multiprocessing
import os
import signal
import threading

import pytest
import torch

from broken_workers import Harmful, circle, feed_of, nothing_left_behind, open_files, read, requests, worker_pids
from hasten.data import watch
from hasten.data.options import LoaderOptions
from hasten.data.watch import Patience
from hasten.errors import DataFailed, Hang, OutOfMemory
from loading import Drawing, content, epoch_of, loader_of

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    # An error that is raised by a signal can come between opening a file and what would close it.
    pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning"),
]

SHORT = Patience(seconds=0.4, first_seconds=0.4, batches=1)
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


# ── dead ────────────────────────────────────────────────────────────────────────────────────────────────────────────


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
    monkeypatch.setattr(watch, "killed_for_memory", lambda: next(counts))
    error = failure_of("kill", OutOfMemory)
    assert error.exit_code == 12
    assert "has killed 2 process(es) for memory" in error.what


@pytest.mark.parametrize(("free", "kind"), [(1 << 20, OutOfMemory), (1 << 40, DataFailed)])
def test_a_broken_bus_is_full_shared_memory_only_where_that_has_little_room(monkeypatch, free, kind):
    monkeypatch.setattr(watch, "free_shared_memory", lambda: free)
    error = failure_of("bus", kind)
    assert "SIGBUS" in error.what
    assert "/dev/shm" in error.what
    assert "maps into memory" in error.what


def test_a_crash_names_the_signal():
    error = failure_of("crash", DataFailed)
    assert "SIGSEGV" in error.what
    assert "faulthandler" in error.fix


@pytest.mark.parametrize(("harm", "code"), [("exit", 3), ("leave", 0)])
def test_a_worker_that_ends_by_itself_is_told_with_its_exit_code(harm, code):
    error = failure_of(harm, DataFailed)
    assert f"ended by itself with exit code {code}" in error.what


@pytest.mark.fault("worker killed")
def test_the_memory_of_a_dead_worker_is_told_when_it_was_looked_at():
    class Waiting(Harmful):
        def __getitem__(self, index):
            if index == self.bad:
                looked.wait(60)
            return super().__getitem__(index)

    looked = multiprocessing.Event()
    note = watch.Crew._note_memory

    def noted(crew):
        note(crew)
        looked.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch.Crew, "_note_memory", noted)
        patch.setattr(watch, "LOOK_SECONDS", 0.05)
        feed = feed_of(Waiting("kill"), TWO, patience=LONG)
        with pytest.raises(DataFailed, match=r"holding [\d,.]+ [MG]iB when last looked at"):
            read(feed, 24)


def test_the_death_of_a_worker_never_interrupts_the_step():
    """torch's own handler would raise wherever the training process is, also within an update."""
    ended = threading.Event()
    previous = watch._on_child_ended

    def told(signum, frame):
        ended.set()
        previous(signum, frame)

    feed = feed_of(Harmful("kill", bad=8), LoaderOptions(workers=1, prefetch_factor=1), patience=LONG)
    answers = feed.answers(requests(24))
    next(answers)
    handler = signal.signal(signal.SIGCHLD, told)
    try:
        next(answers)  # and the worker reads what kills it
        assert ended.wait(60)  # in the step, as it were; nothing is raised here
    finally:
        signal.signal(signal.SIGCHLD, handler)
    with pytest.raises(DataFailed, match="SIGKILL"):
        next(answers)


def test_a_loader_of_the_users_own_still_hears_of_its_workers_at_once(monkeypatch):
    read(feed_of(Drawing(8), TWO), 8)  # our handler is in place
    assert signal.getsignal(signal.SIGCHLD) is watch._on_child_ended
    torchs, heard = watch._previous, []

    def told(signum, frame):
        heard.append(signum)
        torchs(signum, frame)

    monkeypatch.setattr(watch, "_previous", told)
    own = torch.utils.data.DataLoader(Harmful("kill", bad=0), batch_size=4, num_workers=1)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        list(own)
    assert heard


def test_two_feeds_at_once_do_not_take_each_others_workers_for_their_own():
    training = feed_of(Harmful("kill", bad=12), LoaderOptions(workers=2, prefetch_factor=1), patience=LONG)
    answers = training.answers(requests(24))
    next(answers)
    next(answers)  # and the fourth batch, which kills its worker, is asked for
    assert len(read(feed_of(Drawing(24), TWO, patience=LONG), 24)) == 6  # an evaluation, while a worker dies
    with pytest.raises(DataFailed, match="SIGKILL"):
        list(answers)
    training.close()


# ── hung ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
@pytest.mark.fault("worker hangs")
def test_a_worker_in_a_circle_is_told_with_its_line(options):
    error = failure_of("circle", Hang, options, SHORT)
    assert error.exit_code == 14
    first, second, *_ = error.what.splitlines()
    assert first.startswith("no batch came for 0 s; the 2 loader workers were asked and ended")
    assert "stands in:" in second
    line = circle.__code__.co_firstlineno
    assert any(f"broken_workers.py:{line + n} in circle" in error.fix for n in (1, 2))
    assert "broken_workers.py" in error.what
    assert "has nothing to do" in error.what.splitlines()[-1]


def test_a_worker_that_never_gives_a_first_batch_is_told_too():
    feed = feed_of(Harmful("circle", bad=0), TWO, patience=Patience(first_seconds=0.4))
    with pytest.raises(Hang, match="in circle"):
        read(feed, 24)


def test_a_stream_that_goes_on_far_inside_has_more_time_for_its_first_batch():
    crew = watch.Crew(what="Job.train", workers=0, ahead=1)
    assert crew._limit(watch._Round(first_takes=1)) == 60
    assert crew._limit(watch._Round(first_takes=1 + 9)) == 600
    assert crew._limit(watch._Round(first_takes=1 + 9, answered=1)) == 60
    crew.end()


@pytest.mark.fault("worker hangs")
def test_a_stopped_worker_cannot_answer_and_that_is_said():
    error = failure_of("stop", Hang, TWO, SHORT)
    assert "is stopped (by SIGSTOP, or by a debugger) and cannot say where" in error.what


def test_a_long_step_is_no_hang():
    feed = feed_of(Drawing(24), TWO, patience=Patience(seconds=0.05, batches=1))
    answers = feed.answers(requests(24))
    next(answers)
    looks = 0
    with pytest.MonkeyPatch.context() as patch:
        seen = threading.Event()

        def noted(crew):
            nonlocal looks
            looks += 1
            if looks > 12:  # more looks than the patience has
                seen.set()

        patch.setattr(watch.Crew, "_note_memory", noted)
        assert seen.wait(60)
    (crew,) = feed._crews
    crew.patience = LONG
    assert len(list(answers)) == 5


def test_time_in_which_nobody_could_look_is_no_wait(monkeypatch):
    """The training process was stopped, or its machine slept: its workers stood still as well."""

    class Late(Drawing):
        def __getitem__(self, index):
            seen.wait(60)
            return super().__getitem__(index)

    class Jumping:
        now = 0.0

        def monotonic(self):
            self.now += 1000
            return self.now

    looks, seen = itertools.count(), multiprocessing.Event()
    monkeypatch.setattr(watch.Crew, "_note_memory", lambda crew: seen.set() if next(looks) > 4 else None)
    monkeypatch.setattr(watch, "LOOK_SECONDS", 0.02)
    monkeypatch.setattr(watch, "time", Jumping())
    assert len(read(feed_of(Late(24), TWO, patience=Patience(first_seconds=60)), 24)) == 6


@pytest.mark.fault("worker hangs")
def test_usual_batches_make_more_patience_than_the_least():
    assert Patience().limit(0.0) == 60
    assert Patience().limit(2.9) == 60
    assert Patience().limit(10.0) == 200


def test_the_usual_time_is_the_median_from_one_answer_to_the_next():
    epoch = watch._Round(first_takes=1)
    assert epoch.usual_seconds() == 0
    epoch.arrivals.extend([0.0, 1.0, 3.0, 103.0])
    assert epoch.usual_seconds() == 2


# ── nothing left ────────────────────────────────────────────────────────────────────────────────────────────────────


@both_ways
def test_no_process_and_no_file_is_left_after_epochs(options):
    loader = loader_of(Drawing(24), options=options)
    list(loader.epoch(0))
    loader.close()
    gc.collect()
    before = open_files()
    for number in range(10):
        loader = loader_of(Drawing(24), options=options)
        list(loader.epoch(number))
        list(loader.epoch(number + 1))
        loader.close()
    gc.collect()
    assert open_files() < before + 10  # torch closes its queues in threads of their own, some of them later
    assert threading.active_count() == 1 + sum(thread.name != "hasten-watch" for thread in threading.enumerate()[1:])


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


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_to_end_that_all_receive_is_not_the_workers_business(number):
    expected = content(epoch_of(Drawing(40)))
    loader = loader_of(Drawing(40), options=TWO)
    batches = loader.epoch(0)
    found = [next(batches)]
    for pid in worker_pids():
        os.kill(pid, number)  # as a terminal or a scheduler does; what runs may be finished
    found += list(batches)
    assert content(found) == expected
    loader.close()


@both_ways
def test_healthy_workers_end_by_themselves_also_while_the_error_is_held(options):
    """One that is killed may hold a lock that torch then waits for."""
    feed = feed_of(Harmful("kill", bad=0), options, patience=LONG)
    answers = feed.answers(requests(24))
    with pytest.raises(DataFailed) as held:
        next(answers)
    (crew,) = feed._crews
    assert [process.exitcode for process in crew.processes] == [-signal.SIGKILL, 0]
    assert held.value.__context__ is None


def test_an_epoch_begun_after_a_death_is_whole():
    feed = feed_of(Harmful("kill", count=48, bad=40), TWO_STAYING, patience=LONG)
    with pytest.raises(DataFailed):
        read(feed, 48)
    assert len(read(feed, 24)) == 6
    feed.close()
