"""What is said of workers that ended or hang, from records: no process is needed."""

from __future__ import annotations

import dataclasses
import signal

import pytest

from hasten.data.workers.process_stacks import Answer
from hasten.data.workers.worker_faults import Worker, ended, hung
from hasten.errors import DataFailed, OutOfMemory

WORKER = Worker(what="Job.train", number=0, workers=2, ahead=2, pid=71, memory_bytes=300 << 20, answered=5, forked=True)
OTHER = dataclasses.replace(WORKER, number=1, pid=72)
SPAWNED = dataclasses.replace(WORKER, forked=False, answered=0)

STACKS = """\
Thread 0x00007f0c (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 324 in wait
  File "/usr/lib/python3.11/threading.py", line 982 in run

Current thread 0x00007f0d (most recent call first):
  File "/home/me/my data/photos.py", line 12 in decode
  File "/home/me/my data/photos.py", line 30 in __getitem__
  File "/opt/hasten/data/loading/batch_readers.py", line 118 in fill
  File "/opt/hasten/data/loading/batch_readers.py", line 101 in __getitems__
  File "/opt/torch/utils/data/_utils/fetch.py", line 50 in fetch
"""
IDLE = """\
Thread 0x00007f0d (most recent call first):
  File "/usr/lib/python3.11/selectors.py", line 415 in select
  File "/opt/torch/utils/data/_utils/worker.py", line 275 in _worker_loop
"""


def test_the_worker_in_the_users_code_is_told_first_and_its_line_is_what_to_look_at():
    answers = [(WORKER, Answer(state="sleeping", stacks=IDLE)), (OTHER, Answer(state="running", stacks=STACKS))]
    error = hung(61.4, answers)
    lines = error.what.splitlines()
    assert lines[0] == "no batch came for 61 s; the 2 loader workers were asked and ended"
    assert lines[1] == "loader worker 1 of 2 (pid 72) is at:"
    assert lines[2] == "    /home/me/my data/photos.py:12 in decode"
    assert lines[-1] == "loader worker 0 of 2 (pid 71) has nothing to do"
    assert error.fix == "check this line: /home/me/my data/photos.py:12 in decode"
    assert error.exit_code == 14


@pytest.mark.parametrize(
    ("before", "now", "kind", "said"),
    [
        (3, 4, OutOfMemory, "has killed 1 process(es) for memory"),
        (3, 3, DataFailed, "has killed no process for memory"),
        (None, None, DataFailed, "does not say whether it was for memory"),
    ],
)
def test_memory_is_blamed_only_on_evidence(before, now, kind, said):
    error = ended(WORKER, -signal.SIGKILL, before, now)
    assert type(error) is kind
    assert said in error.what
    assert "holding 300 MiB when last looked at" in error.what


def test_a_crash_names_the_signal():
    error = ended(WORKER, -signal.SIGSEGV, 0, 0)
    assert "was killed by SIGSEGV" in error.what
    assert "faulthandler" in error.fix


@pytest.mark.parametrize(
    ("free", "kind", "room"),
    [
        (64 << 20, OutOfMemory, "/dev/shm, through which it sends, is full (64.0 MiB are free there now), or a file"),
        (64 << 30, DataFailed, "/dev/shm, through which it sends, is full (64.0 GiB are free there now), or a file"),
        (None, DataFailed, "/dev/shm, through which it sends, is full, or a file"),
    ],
)
def test_a_broken_bus_is_full_shared_memory_or_a_mapped_file_and_both_are_told(free, kind, room):
    error = ended(WORKER, -signal.SIGBUS, 0, 0, free)
    assert type(error) is kind
    assert error.what.startswith("loader worker 0 of 2 (pid 71) was killed by SIGBUS, holding 300 MiB")
    assert room in error.what
    assert "a file that the data set maps into memory" in error.what
    assert "watch `df /dev/shm` while it trains" in error.fix
    assert "if it fills up, make it larger (docker: --shm-size), or use fewer loader workers than 2" in error.fix
    assert "if it does not, check the disk of the mapped files" in error.fix


def test_a_new_python_that_ends_before_its_first_batch_lacks_the_guard():
    assert "__main__" in ended(SPAWNED, 1, 0, 0).fix
    assert "__main__" not in ended(WORKER, 1, 0, 0).fix
