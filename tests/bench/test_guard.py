"""A group of processes ends with whoever watches over it, however that comes to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest
from bench.guard import guarded

ROOT = Path(__file__).parents[2]


@pytest.fixture
def group():
    leader = subprocess.Popen(["sleep", "1000"], start_new_session=True)
    yield leader
    leader.kill()
    leader.wait()


def test_a_group_is_left_alone_inside_and_ends_afterwards(group):
    with guarded(group.pid):
        os.killpg(group.pid, signal.SIGSTOP)
        assert group.poll() is None
    assert group.wait(60) == -signal.SIGKILL


def test_a_group_ends_even_where_its_guard_was_killed(group):
    with guarded(group.pid):
        for guard in psutil.Process().children():
            if guard.pid != group.pid:
                guard.kill()
    assert group.wait(60) == -signal.SIGKILL


def test_a_group_ends_where_the_process_that_watches_over_it_is_killed(group):
    code = f"""
import os, signal
from bench.guard import guarded
with guarded({group.pid}):
    os.kill(os.getpid(), signal.SIGKILL)
"""
    assert subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=False).returncode == -signal.SIGKILL
    assert group.wait(60) == -signal.SIGKILL
