"""A worker that began as a copy reads files that were open already from positions of its own."""

from __future__ import annotations

import multiprocessing
import os
import signal

import pytest
import torch

from hasten.data.own_positions import take_own_positions
from loading import TWO_WORKERS, epoch_of

# Workers are forked while torch's own threads exist; they use none of them. Python says so from 3.12 on.
pytestmark = [
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
    pytest.mark.skipif(multiprocessing.get_start_method() != "fork", reason="workers do not start as copies here"),
]

ROW = 64


@pytest.fixture
def numbers(tmp_path):
    path = tmp_path / "numbers.bin"
    path.write_bytes(bytes(range(ROW)) * 4)
    return path


def answer_of(child):
    """What a function returns in a process that is a copy of this one, as bytes."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(writing, child())
        finally:
            os._exit(0)
    os.close(writing)
    os.waitpid(pid, 0)
    with os.fdopen(reading, "rb") as pipe:
        return pipe.read()


def test_what_a_copy_reads_moves_the_position_of_no_other_process(numbers):
    with open(numbers, "rb", buffering=0) as file:
        assert file.read(5) == bytes(range(5))

        def reads_on():
            take_own_positions()
            return file.read(5)

        assert answer_of(reads_on) == bytes(range(5, 10))
        assert file.tell() == 5


def test_a_file_that_was_removed_meanwhile_is_taken_too(numbers):
    with open(numbers, "rb", buffering=0) as file:
        numbers.unlink()
        assert answer_of(lambda: take_own_positions() or file.read(3)) == bytes(range(3))
        assert file.tell() == 0


@pytest.mark.parametrize("how", [os.O_WRONLY, os.O_RDWR])
def test_a_log_that_both_append_to_stays_one_file(tmp_path, how):
    log = os.open(tmp_path / "log", how | os.O_CREAT)
    try:
        os.write(log, b"one ")
        answer_of(lambda: take_own_positions() or bytes(os.write(log, b"two ")))
        os.write(log, b"three")
    finally:
        os.close(log)
    assert (tmp_path / "log").read_bytes() == b"one two three"


def test_pipes_and_the_flags_of_a_file_stay_as_they_are(numbers):
    reading, writing = os.pipe()
    file = os.open(numbers, os.O_RDONLY | os.O_NONBLOCK)
    try:
        os.write(writing, b"in the pipe")

        def looks():
            take_own_positions()
            return os.read(reading, 11) + bytes([os.get_blocking(file), os.get_inheritable(file)])

        for inheritable in (False, True):
            os.set_inheritable(file, inheritable)
            assert answer_of(looks) == b"in the pipe" + bytes([False, inheritable])
            os.write(writing, b"in the pipe")
    finally:
        for each in (reading, writing, file):
            os.close(each)


def test_no_further_file_is_left_open(numbers):
    with open(numbers, "rb", buffering=0):

        def counts():
            before = os.listdir("/proc/self/fd")
            take_own_positions()
            return b"as before" if os.listdir("/proc/self/fd") == before else b"more"

        assert answer_of(counts) == b"as before"


def test_what_is_no_file_is_not_opened_again(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    waiting = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)

    def looks():
        signal.alarm(20)  # without a writer, to open it again would take for ever
        take_own_positions()
        return b"done"

    try:
        assert answer_of(looks) == b"done"
    finally:
        os.close(waiting)


class OneFile:
    """Rows of one file that is open already. Two positions tell whether another reader has moved it in between."""

    def __init__(self, file):
        self.file = file

    def __len__(self):
        return 64

    def __getitem__(self, index):
        self.file.seek(index % 4)
        for _ in range(200):  # as many chances for another worker
            os.sched_yield()
        return torch.tensor(list(self.file.read(8))), index


def test_many_workers_read_the_right_rows_of_a_file_that_was_open_before_they_began(numbers):
    with open(numbers, "rb", buffering=0) as file:
        for one in epoch_of(OneFile(file), options=TWO_WORKERS):
            rows, indices = one.batch
            assert torch.equal(rows, (indices % 4)[:, None] + torch.arange(8))
