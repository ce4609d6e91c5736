"""Whatever a job does to its arm by mistake, it fails with its class, and neither other arms, nor the caller, nor the
machine are harmed."""

from __future__ import annotations

import gc
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest
import torch

from hasten.checkpoint.folders.process_folder import remove_what_the_dead_left
from hasten.facts.plan import Plan
from hasten.tuning.trials.arms import Arms, Limits
from hasten.tuning.trials.process_tree import descendants
from hasten.tuning.trials.trial_outcome import ArmFailed, Outcome

JOBS = Path(__file__).parents[1] / "jobs" / "misbehaving_jobs.py"

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="what holds all processes together is Linux's own")


def line_of(text: str) -> int:
    return 1 + next(at for at, line in enumerate(JOBS.read_text().splitlines()) if text in line)


def come(condition: Callable[[], bool]) -> None:
    """Wait for what comes by itself; the test's own limit ends it."""
    while not condition():
        os.sched_yield()


def lives(pid: int) -> bool:
    with suppress(psutil.NoSuchProcess):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


@pytest.fixture(scope="module", autouse=True)
def neighbour():
    """An arm that lives beside all others, and is as well after them as before."""
    with Arms(f"{JOBS}:job").start("neighbour", Plan()) as arm:
        assert arm.window(2).steps == 2
        yield arm


@pytest.fixture(autouse=True)
def journal(neighbour, tmp_path, monkeypatch):
    """Afterwards no process that a job has noted lives, nor any other that an arm has started, but for the neighbour,
    which can still be measured."""
    path = tmp_path / "journal"
    path.touch()
    monkeypatch.setenv("HASTEN_TEST_JOURNAL", str(path))
    yield path
    noted = [int(pid) for pid in path.read_text().split()]
    left = [pid for pid in noted if lives(pid)]
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert not left
    assert neighbour.window(2).steps == 2


def arms(function: str, **limits: float) -> Arms:
    return Arms(f"{JOBS}:{function}", Limits(**({"window_seconds": 60} | limits)))


def failure(function: str, *, windows: int = 1, steps: int = 2, **limits: float) -> ArmFailed:
    with pytest.raises(ArmFailed) as caught, arms(function, **limits).start("tried", Plan()) as arm:
        for _ in range(windows):
            arm.window(steps)
    return caught.value


@pytest.mark.trap(47)
def test_an_arm_that_has_failed_says_the_same_again_and_is_gone():
    with arms("job_dies_before_its_child").start("tried", Plan()) as arm:
        for _ in range(2):
            with pytest.raises(ArmFailed, match="it was killed by SIGABRT"):
                arm.window(2)
    # that its child has ended too, the fixture checks


@pytest.mark.trap(48)
@pytest.mark.parametrize(
    ("function", "limit", "line", "place"),
    [
        ("job_hangs_with_the_interpreter_locked", "window_seconds", "re.match(", "hangs_with_the_interpreter_locked"),
        ("hangs_while_built", "build_seconds", "signal.pause()", "stay"),
    ],
)
@pytest.mark.fault("trial crashes, hangs, leaks")
def test_the_line_is_named_in_which_an_arm_hangs(function, limit, line, place):
    found = failure(function, **{limit: 0.5})
    assert found.outcome is Outcome.HUNG
    assert f"{JOBS.name}:{line_of(line)}, in {place}" in found.what


def test_an_arm_ends_before_the_memory_of_the_machine_is_full(monkeypatch):
    free = iter([100 << 30, *[19 << 30] * 1000])
    monkeypatch.setattr("hasten.tuning.trials.arms.free_memory", lambda: next(free))
    found = failure("job")
    assert (found.outcome, found.what.startswith("the machine has 19.0 GiB of memory left")) == (
        Outcome.OUT_OF_MEMORY,
        True,
    )


def test_an_arm_that_prints_much_is_measured():
    with arms("job_prints_much").start("tried", Plan()) as arm:
        assert arm.window(2).steps == 2


@pytest.mark.trap(47)
@pytest.mark.parametrize(("function", "processes"), [("job_forks_what_forks", 3 + 9), ("job_twins", 2)])
@pytest.mark.fault("trial crashes, hangs, leaks")
def test_no_process_that_an_arm_has_started_runs_outside_its_windows_or_outlives_it(function, processes, journal):
    with arms(function).start("tried", Plan()) as arm:
        assert arm.window(2).steps == 2
        come(lambda: len(journal.read_text().split()) == processes or not arm.window(1))
        noted = [int(pid) for pid in journal.read_text().split()]
        come(lambda: all(psutil.Process(pid).status() == psutil.STATUS_STOPPED for pid in noted if lives(pid)))
        assert [arm.window(2).steps for _ in range(3)] == [2, 2, 2]


@pytest.mark.proof
@pytest.mark.trap(47)
def test_nothing_of_the_callers_changes(tmp_path, monkeypatch):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "mine.py").write_text(JOBS.read_text())
    (mine / "neighbour.py").write_text("")
    (mine / "other.py").write_text("from mine import *\nimport mine, neighbour\n__getattr__ = mine.__getattr__\n")
    places = tmp_path / "places"
    places.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(places))
    monkeypatch.chdir(mine)
    trial_in_other_file("job")  # the fork server stays, with the pipes by which it is asked, and the lock of a folder
    before = state_of_this_process(tmp_path)
    everyday = ("job", "job_prints_much")
    for function in (*everyday * 5, "job_dies_before_its_child", "not_there"):
        trial_in_other_file(function)
    (tmp_path / "journal").write_text("")
    assert state_of_this_process(tmp_path) == before


def trial_in_other_file(function: str) -> None:
    """multiprocessing closes its pipes to a process with the last reference to it, which an error may have."""
    with suppress(ArmFailed), Arms(f"other.py:{function}").start("tried", Plan()) as arm:
        arm.window(2)
    gc.collect()


def state_of_this_process(folder: Path) -> dict[str, Any]:
    numbers = np.random.get_state()
    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "files": sorted(path.relative_to(folder) for path in folder.rglob("*")),
        "path": list(sys.path),
        "arguments": list(sys.argv),
        "random": (random.getstate(), str(numbers), torch.get_rng_state().tolist()),
        "threads": (threading.active_count(), torch.get_num_threads(), len(os.listdir("/proc/self/task"))),
        "descriptors": sorted(map(link, os.listdir("/proc/self/fd"))),
        "signals": [signal.getsignal(number) for number in sorted(signal.valid_signals())],
        "blocked": signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        "flags": [
            torch.backends.cudnn.benchmark,
            torch.backends.cudnn.deterministic,
            torch.get_float32_matmul_precision(),
            torch.are_deterministic_algorithms_enabled(),
            torch.get_default_dtype(),
        ],
        "devices": torch.cuda.is_initialized(),
        "children": [child.pid for child in psutil.Process().children()],
    }


def link(descriptor: str) -> str:
    with suppress(OSError):  # that of the listing itself
        return os.readlink(f"/proc/self/fd/{descriptor}")
    return ""


@pytest.mark.trap(47)
def test_the_machine_chooses_an_arm_and_not_its_caller_where_memory_is_full(journal):
    mine = Path("/proc/self/oom_score_adj").read_text()
    with arms("job_twins").start("tried", Plan()) as arm:
        arm.window(2)
        found = {Path(f"/proc/{pid}/oom_score_adj").read_text() for pid in journal.read_text().split()}
    assert found == {"1000\n"}
    assert Path("/proc/self/oom_score_adj").read_text() == mine


SEARCH = f"""
import signal
from hasten.checkpoint.folders.process_folder import process_folder
from hasten.facts.plan import Plan
from hasten.tuning.trials.arms import Arms
try:
    with Arms({str(JOBS)!r} + ":job_twins").start("tried", Plan()) as arm:
        arm.window(2)
        print(process_folder(), flush=True)
        signal.pause()  # the arm is stopped meanwhile
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.proof
@pytest.mark.trap(47)
@pytest.mark.parametrize(
    ("number", "said", "code"),
    [(signal.SIGINT, "interrupted\n", 0), (signal.SIGTERM, "", -15), (signal.SIGKILL, "", -9)],
)
def test_a_search_that_is_interrupted_or_killed_leaves_nothing(number, said, code, journal):
    """Of one that is killed, the next process removes the folder."""
    search = subprocess.Popen(
        [sys.executable, "-c", SEARCH],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    assert search.stdout is not None
    folder = Path(search.stdout.readline().strip())
    assert folder.is_dir()
    below = {*descendants(search.pid), *map(int, journal.read_text().split())}
    # An interrupt from the keyboard reaches all of the group, and so does the signal of timeout or of a batch system.
    (os.kill if number == signal.SIGKILL else os.killpg)(search.pid, number)
    assert search.communicate() == (said, "")
    assert search.returncode == code
    come(lambda: not any(map(lives, below)))
    remove_what_the_dead_left()
    assert not folder.exists()
