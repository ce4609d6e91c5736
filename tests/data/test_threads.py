"""Threads that read ahead: the answers come in order, and nothing that goes wrong stays behind."""

import subprocess
import sys
import threading
import weakref
from itertools import count as counted

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from broken_workers import feed_of, nothing_left_behind, read, requests
from hasten.data import threads
from hasten.data.gate import GATE
from hasten.data.options import LoaderOptions
from hasten.data.patience import Patience
from hasten.data.threads import Threads, threads_resting
from hasten.errors import Hang

PATIENT = 60.0  # seconds: longer than any test


class Crew:
    """Threads for the length of a test, and a wait for their end."""

    def __init__(self, read, count=2, ahead=1, limit=lambda: PATIENT):
        self.before = set(threading.enumerate())
        self.threads = Threads(read, count, ahead, limit)
        self.mine = set(threading.enumerate()) - self.before

    def __enter__(self):
        return self.threads

    def __exit__(self, *error):
        self.threads.close()
        for thread in self.mine:
            thread.join(PATIENT)
            assert not thread.is_alive()


@settings(max_examples=25)
@given(requests=st.integers(0, 40), threads=st.integers(1, 4), ahead=st.integers(0, 3))
def test_answers_come_in_the_order_of_the_requests(requests, threads, ahead):
    with Crew(lambda request: request * request, threads, ahead) as crew:
        for _ in range(2):
            assert list(crew.answers(range(requests))) == [each * each for each in range(requests)]


def test_a_slow_first_answer_does_not_let_the_second_pass():
    second = threading.Event()

    def read(request):
        if request == 0:
            assert second.wait(PATIENT)
        elif request == 1:
            second.set()
        return request

    with Crew(read) as crew:
        assert list(crew.answers(range(5))) == [0, 1, 2, 3, 4]


def test_no_more_is_read_ahead_than_was_asked_for():
    asked = []

    def requests():
        for number in range(100):
            asked.append(number)
            yield number

    with Crew(lambda request: request, count=2, ahead=3) as crew:
        answers = crew.answers(requests())
        next(answers)
        assert len(asked) == 8
        next(answers)
        assert len(asked) == 9
        answers.close()


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit])
def test_an_error_comes_at_its_place_and_the_next_epoch_is_read(error):
    def read(request):
        if request == 3:
            raise error("broken")
        return request

    with Crew(read) as crew:
        found = []
        with pytest.raises(error, match="broken"):
            found.extend(crew.answers(range(8)))
        assert found == [0, 1, 2]
        assert list(crew.answers([4, 5, 6])) == [4, 5, 6]


def test_an_error_of_the_requests_comes_too():
    def requests():
        yield 1
        raise LookupError("no more")

    with Crew(lambda request: request) as crew, pytest.raises(LookupError):
        list(crew.answers(requests()))


def test_an_epoch_left_early_leaves_nothing_for_the_next():
    read, go_on = [], threading.Event()

    def slowly(request):
        if request[0] == "left":
            go_on.wait(PATIENT)
        read.append(request)
        return request

    with Crew(slowly, count=1, ahead=5) as crew:
        left = crew.answers(("left", number) for number in counted())
        threading.Thread(target=go_on.set).start()
        assert next(left) == ("left", 0)
        go_on.clear()
        left.close()
        go_on.set()
        assert list(crew.answers([("next", 0), ("next", 1)])) == [("next", 0), ("next", 1)]


@pytest.mark.parametrize("close_at", [0, 1, 2])
def test_an_epoch_that_is_closed_while_the_next_is_read_takes_nothing_from_it(close_at):
    with Crew(lambda request: request, count=1, ahead=7) as crew:
        left = crew.answers(range(100, 200))
        assert next(left) == 100
        found = []
        for number, answer in enumerate(crew.answers(range(20))):
            if number == close_at:
                left.close()
            found.append(answer)
        assert found == list(range(20))


def test_what_is_forgotten_is_not_read():
    begun, go_on, read = threading.Event(), threading.Event(), []

    def slowly(request):
        if request == 1:
            begun.set()
            assert go_on.wait(PATIENT)
        read.append(request)
        return request

    with Crew(slowly, count=1, ahead=9) as crew:
        left = crew.answers(range(10))
        assert next(left) == 0
        assert begun.wait(PATIENT)
        left.close()
        go_on.set()
        assert list(crew.answers([100])) == [100]
    assert read == [0, 1, 100]


def test_a_reader_that_hangs_is_told_with_the_place_where_it_stands():
    go_on = threading.Event()

    def a_file_system_that_went_away(request):
        assert go_on.wait(PATIENT)

    with Crew(a_file_system_that_went_away, count=2, limit=lambda: 0.05) as crew:
        with pytest.raises(Hang, match="no batch came from 2 loader threads for 0 s") as hang:
            next(crew.answers(range(4)))
        go_on.set()
    assert hang.value.exit_code == 14
    assert hang.value.what.count("a_file_system_that_went_away") == 2
    assert "hasten-loader-0" in hang.value.what
    assert "file system" in hang.value.fix


def test_the_limit_is_asked_for_every_answer():
    asked = []

    def limit():
        asked.append(len(asked))
        return PATIENT

    with Crew(lambda request: request, limit=limit) as crew:
        list(crew.answers(range(5)))
    assert asked == [0, 1, 2, 3, 4]


def test_each_thread_computes_alone_and_the_callers_threads_stay_as_they_were():
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    try:
        with Crew(lambda request: torch.get_num_threads(), count=2) as crew:
            assert torch.get_num_threads() == 3
            assert set(crew.answers(range(6))) == {1}
            later = []
            thread = threading.Thread(target=lambda: later.append(torch.get_num_threads()))
            thread.start()
            thread.join()
            assert later == [3]
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_a_batch_is_the_callers_alone():
    class Batch:
        pass

    given_out, still_there = [], []

    def read(request):
        still_there.append([batch() is not None for batch in given_out])
        return Batch()

    with Crew(read, count=1, ahead=0) as crew:
        for batch in crew.answers(range(3)):
            given_out.append(weakref.ref(batch))
            del batch
    assert still_there == [[], [False], [False, False]]


def test_closing_twice_does_no_harm():
    with Crew(lambda request: request) as crew:
        assert list(crew.answers([1])) == [1]
        crew.close()


# ── and worker processes that are forked while they run ─────────────────────────────────────────────────────────────

LIBRARYS_OWN = threading.Lock()  # as one of imports, of a decoder, of a log: what a child inherits taken stays so


class Training:
    """Samples that hold the lock nearly all of the time that they are read."""

    steady_reason = "it only counts"

    def __len__(self):
        return 4000

    def __getitem__(self, index):
        with LIBRARYS_OWN:
            sum(range(20_000))
            return index


class Evaluation:
    """May draw, for all that is known, so processes read it."""

    def __len__(self):
        return 8

    def __getitem__(self, index):
        with LIBRARYS_OWN:
            return index


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_workers_that_are_forked_while_threads_read_inherit_no_lock_that_these_hold():
    options = LoaderOptions(workers=2, worker_kind="threads", prefetch_factor=200)
    patience = Patience(first_seconds=15)
    with nothing_left_behind():
        training, evaluation = (feed_of(data, options, patience=patience) for data in (Training(), Evaluation()))
        answers, found = training.answers(requests(4000)), []
        for _ in range(3):
            found.append(next(answers).tolist())
            assert [batch.tolist() for batch in read(evaluation, 8)] == [[0, 1, 2, 3], [4, 5, 6, 7]]
        assert found == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
        answers.close()
        training.close()
        evaluation.close()


def test_while_threads_rest_none_reads_and_afterwards_they_go_on(switching_all_the_time):
    inside = set()

    def busy(request):
        inside.add(request)
        sum(range(2_000))
        inside.remove(request)
        return request

    with Crew(busy, count=3, ahead=200) as crew:
        answers = crew.answers(counted())
        for number in range(30):
            assert next(answers) == number
            with threads_resting():
                for _ in range(1_000):
                    assert inside == set()
        answers.close()


def test_a_thread_that_does_not_come_to_rest_is_told_and_the_others_go_on():
    begun, go_on = threading.Event(), threading.Event()

    def a_file_system_that_went_away(request):
        if request == 1:
            begun.set()
            assert go_on.wait(PATIENT)
        return request

    limits = [PATIENT]
    with Crew(a_file_system_that_went_away, count=2, limit=lambda: limits[0]) as crew:
        answers = crew.answers(range(6))
        assert next(answers) == 0
        assert begun.wait(PATIENT)
        limits[0] = 0.05
        told = pytest.raises(Hang, match="no loader worker can be started: for 0 s a loader thread")
        with told as hang, threads_resting():
            raise AssertionError("one reads")
        limits[0] = PATIENT
        assert "a_file_system_that_went_away" in hang.value.what
        go_on.set()
        assert list(answers) == [1, 2, 3, 4, 5]


def test_the_longest_limit_of_all_loaders_is_how_long_a_batch_is_waited_for():
    begun, go_on = threading.Event(), threading.Event()

    def slowly(request):
        begun.set()
        assert go_on.wait(PATIENT)
        return request

    def let_go():
        waits = False
        while not waits:
            with GATE._changed:  # free only before it is shut and while the other waits
                waits = bool(GATE._shut)
        go_on.set()

    with Crew(lambda request: request, limit=lambda: 0.0), Crew(slowly, count=1, ahead=0) as crew:
        found = []
        asking = threading.Thread(target=lambda: found.extend(crew.answers([7])))
        asking.start()
        assert begun.wait(PATIENT)
        threading.Thread(target=let_go).start()
        with threads_resting():
            pass
        asking.join(PATIENT)
    assert found == [7]


def test_closing_waits_for_the_threads_and_the_end_of_the_process_not_again(monkeypatch):
    waited, wait = [], threads._join

    def watched(those):
        waited.append(list(those))
        wait(those)

    crew = Threads(lambda request: request, 2, 1, lambda: PATIENT)
    assert set(crew._threads) <= set(threads._STARTED)
    monkeypatch.setattr(threads, "_join", watched)
    crew.close()
    assert waited == [crew._threads]
    assert not set(crew._threads) & set(threads._STARTED)


def test_threads_that_hang_are_waited_for_together_not_one_after_the_other(monkeypatch):
    class Hung:
        def join(self, timeout):
            clock[0] += timeout
            waited.append(timeout)

        def is_alive(self):
            return True

    clock, waited, hung = [100.0], [], [Hung(), Hung(), Hung()]
    monkeypatch.setattr(threads.time, "monotonic", lambda: clock[0])
    monkeypatch.setattr(threads, "_STARTED", {*hung})
    threads._join(hung)
    assert waited == [threads.END_SECONDS, 0.0, 0.0]
    assert {*hung} == threads._STARTED  # the end of the process waits for them once more: they may be about to end


LEFT_OPEN = """
import os, sys
import torch
from hasten.data.threads import Threads

def read(request):
    for _ in range(3):
        torch.randn(600, 600) @ torch.randn(600, 600)
    return request

for _ in range(5):  # each in a copy, which ends as a process does that has loaded torch itself
    if (copy := os.fork()) == 0:
        break
    assert os.waitpid(copy, 0)[1] == 0
else:
    sys.exit(0)
threads = Threads(read, 4, 2, lambda: 60.0)
answers = threads.answers(iter(range(10**6)))
print(next(answers), next(answers))
"""


def test_a_process_that_ends_without_closing_its_loader_ends_well():
    # torch's own threads exist where it copies itself; Python says so from 3.12 on.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LEFT_OPEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=150)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n" * 5, "")
