"""What would stop loader workers is found before they start; and how they start changes nothing."""

from __future__ import annotations

import shlex
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from hasten.data.loading import batch_feed as feed
from hasten.data.loading.loader_options import LoaderOptions
from hasten.data.workers.hang_limit import Patience
from hasten.errors import JobError, PlanError
from support.data.broken_workers import Large, feed_of, nothing_left_behind, read, worker_pids
from support.data.loaders import TWO_WORKERS, Drawing, content, epoch_of, loader_of

LONG = Patience(seconds=120)
MIB = 1 << 20
REPOSITORY = Path(__file__).resolve().parents[3]


class Locked(Drawing):
    def __init__(self, count):
        super().__init__(count)
        self.files = {"rows": [threading.Lock()]}


@pytest.mark.fault("unpicklable dataset under spawn")
def test_a_data_set_that_cannot_be_sent_is_refused_by_its_attribute(other_start):
    before = worker_pids()
    with pytest.raises(JobError) as caught:
        next(loader_of(Locked(8), options=TWO_WORKERS).epoch(0))
    assert caught.value.exit_code == 2
    assert caught.value.where == "Job.train"
    assert f"(start method {other_start}): train.files['rows'][0] is <unlocked" in caught.value.what
    assert worker_pids() == before


@pytest.mark.proof
@pytest.mark.trap(39)
def test_workers_that_start_anew_read_the_same_batches(other_start):
    expected = content(epoch_of(Drawing(13)))
    with nothing_left_behind():
        assert content(epoch_of(Drawing(13), options=TWO_WORKERS)) == expected


@pytest.mark.fault("/dev/shm too small")
def test_more_than_shared_memory_holds_is_refused_with_the_numbers(monkeypatch):
    monkeypatch.setattr(feed, "free_shared_memory", lambda: 16 * MIB)
    options = LoaderOptions(workers=2, prefetch_factor=2)
    with nothing_left_behind(), pytest.raises(PlanError) as caught:
        read(feed_of(Large(8), options, patience=LONG), 8)
    assert caught.value.exit_code == 2
    assert caught.value.where == "loader_workers"
    assert "5 batches of 4.00 MiB in shared memory (shm), together 20.0 MiB; 16.0 MiB are free" in caught.value.what
    assert "--shm-size" in caught.value.fix


SMALL = """
    import os, sys
    sys.path[:0] = ["src", "tests"]
    import torch
    from support.data.broken_workers import Large, as_list, feed_of, read, segments
    from hasten.data.loading import batch_feed as feed
    from hasten.data.loading.loader_options import LoaderOptions
    from hasten.data.workers.hang_limit import Patience

    def error_of(collate):
        options = LoaderOptions(workers=2, prefetch_factor=4)
        try:
            read(feed_of(Large(64), options, patience=Patience(), collate=collate), 64)
        except Exception as error:
            return error

    for collate in (None, as_list):
        print(type(error_of(collate)).__name__, str(error_of(collate)).splitlines()[0])
    feed.is_ample = lambda *asked: True  # as though nothing had been found before the start
    for collate in (None, as_list):
        error = error_of(collate)
        print(type(error).__name__, str(error).splitlines()[0])
    print("left:", sorted(segments()))
"""


@pytest.mark.proof
@pytest.mark.fault("/dev/shm too small")
def test_in_a_machine_with_a_small_shared_memory_the_message_names_it_and_nothing_is_left(tmp_path):
    script = tmp_path / "small.py"
    script.write_text(textwrap.dedent(SMALL))
    mount = "mount -t tmpfs -o size=12m tmpfs /dev/shm"
    namespace = ["unshare", "--mount", "--user", "--map-root-user", "sh", "-c"]
    try:
        probe = subprocess.run([*namespace, mount], capture_output=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("there is no unshare here")
    if probe.returncode:
        pytest.skip("this system lets nobody mount a small /dev/shm")
    command = f"{mount} && exec {shlex.join([sys.executable, str(script)])}"
    found = subprocess.run([*namespace, command], capture_output=True, text=True, cwd=REPOSITORY)
    lines = found.stdout.splitlines()
    assert len(lines) == 5, found.stderr
    for line in lines[:2]:
        assert line.startswith("PlanError loader_workers: 2 loader workers that keep 4 batches each hold 9 batches")
    for line in lines[2:4]:
        assert line.startswith("OutOfMemory")
        assert "shm" in line
    assert lines[4] == "left: []"
