"""LoaderThreads that read ahead: the answers come in order, and nothing that goes wrong stays behind."""

import subprocess
import sys
import threading
from itertools import count as counted

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.workers.hang_limit import Patience
from hasten.data.workers.loader_threads import LoaderThreads, threads_paused
from hasten.errors import Hang
from support.data.broken_workers import feed_of, nothing_left_behind, read, requests

PATIENT = 60.0  # seconds: longer than any test


class Crew:
    """LoaderThreads for the length of a test, and a wait for their end."""

    def __init__(self, read, count=2, ahead=1, limit=lambda: PATIENT):
        self.before = set(threading.enumerate())
        self.threads = LoaderThreads(read, count, ahead, limit)
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
        with told as hang, threads_paused():
            raise AssertionError("one reads")
        limits[0] = PATIENT
        assert "a_file_system_that_went_away" in hang.value.what
        go_on.set()
        assert list(answers) == [1, 2, 3, 4, 5]


LEFT_OPEN = """
import os, sys
import torch
from hasten.data.workers.loader_threads import LoaderThreads

def read(request):
    for _ in range(3):
        torch.randn(600, 600) @ torch.randn(600, 600)
    return request

for _ in range(2):  # each in a copy, which ends as a process does that has loaded torch itself
    if (copy := os.fork()) == 0:
        break
    assert os.waitpid(copy, 0)[1] == 0
else:
    sys.exit(0)
threads = LoaderThreads(read, 4, 2, lambda: 60.0)
answers = threads.answers(iter(range(10**6)))
print(next(answers), next(answers))
"""


def test_a_process_that_ends_without_closing_its_loader_ends_well():
    # torch's own threads exist where it copies itself; Python says so from 3.12 on.
    command = [sys.executable, "-W", "ignore::DeprecationWarning", "-c", LEFT_OPEN]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 1\n" * 2, "")
