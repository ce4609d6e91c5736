"""A run ends when it has ended, whatever its job leaves running: pools, workers, programs, threads, servers."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from support.faults import left_running_jobs

Trained = Callable[[str, str], dict[str, Any]]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Trained]:
    """How the training of a job ends; see left_running_jobs.py."""
    with subprocess.Popen(
        [sys.executable, "-W", "ignore", left_running_jobs.__file__],
        cwd=tmp_path_factory.mktemp("left_running"),
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    ) as trainer:

        def train(name: str, way: str) -> dict[str, Any]:
            assert trainer.stdin is not None
            assert trainer.stdout is not None
            trainer.stdin.write(f"{name} {way}\n")
            return json.loads(trainer.stdout.readline())

        yield train


def rarely(name: str, way: str = "command") -> Any:
    return pytest.param(name, way, marks=pytest.mark.proof)


@pytest.mark.parametrize(
    ("left", "way"),
    [
        rarely("persistent_workers"),
        rarely("planned_workers", "plan"),
        rarely("pool_of_a_data_set"),
        rarely("fork", "folder"),
        rarely("process_executor"),
        ("thread_that_ends", "command"),
        rarely("server"),
    ],
)
def test_a_run_ends_whatever_its_job_leaves_running(trained: Trained, left: str, way: str):
    found = trained(left, way)
    assert found["code"] == 0, found["told"]
    assert "why       the planned run is complete" in found["told"]


@pytest.mark.proof
def test_a_mistake_of_the_job_is_said_and_ends_the_run_beside_workers_that_stay(trained: Trained):
    found = trained("mistaken_with_workers", "command")
    assert found["code"] == 10, found["told"]
    assert 'raise ValueError("a mistake of the job\'s own")' in found["told"]
    assert "  ended     by ValueError; step 2 is saved" in found["told"]


@pytest.mark.proof
def test_a_thread_that_keeps_python_from_ending_comes_after_the_end_of_the_run_and_goes_by_sigterm(trained: Trained):
    found = trained("endless_thread", "command")
    assert found["code"] == 143, found["told"]
    assert "why       the planned run is complete" in found["told"]
    assert found["told"].splitlines()[-1] == "ended by SIGTERM"
