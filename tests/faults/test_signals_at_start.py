"""Signals while a command starts: it loads for a second or two, and ends by them there as it does when it trains."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from hasten.errors import INTERRUPTED, TERMINATED
from support.ranks.launching import still_there

TESTS = Path(__file__).resolve().parents[1]
FIRST_SECONDS = 1.5
TIMES = 100  # of each signal

JOBS = """
from support import small_job

def endless():
    return small_job(epochs=1_000_000)

def asked_to_end():
    import os, signal
    os.kill(os.getpid(), signal.SIGTERM)
    while True:
        signal.pause()

def beside_a_process():
    import multiprocessing, pathlib, signal
    child = multiprocessing.get_context("fork").Process(target=signal.pause)
    child.start()
    pathlib.Path("child").write_text(str(child.pid))
    return asked_to_end()
"""


def started(folder: Path, function: str = "endless", *options: str) -> subprocess.Popen[str]:
    (folder / "jobs_of_starts.py").write_text(JOBS)
    return subprocess.Popen(
        [sys.executable, "-m", "hasten", "train", f"jobs_of_starts.py:{function}", "--run-dir", "run", *options],
        cwd=folder,
        env=os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heeding_all,
    )


def heeding_all() -> None:
    """A process in the background of a shell is born deaf to Ctrl-C."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def catches(pid: int, number: int) -> bool:
    """Whether the process has a handler for the signal: before it has, Python itself is still starting."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(line.split()[1] for line in lines if line.startswith("SigCgt:"))
    return bool(int(caught, 16) >> (number - 1) & 1)


def ended(folder: Path, number: int, seconds: float, *options: str) -> tuple[int, str, str]:
    """By a signal that comes so many seconds after the command has begun: exit code and all that it says."""
    with started(folder, "endless", *options) as process:
        ends = os.pidfd_open(process.pid)
        try:
            while not catches(process.pid, signal.SIGTERM):
                assert not select.select([ends], [], [], 0.001)[0]
            select.select([ends], [], [], seconds)
            process.send_signal(number)
            out, told = process.communicate(timeout=150)
        finally:
            process.kill()
            os.close(ends)
    return process.returncode, out, told


def check_ends(folder: Path, number: int, seconds: float) -> None:
    folder.mkdir()
    code, out, told = ended(folder, number, seconds)
    assert code == (INTERRUPTED if number == signal.SIGINT else TERMINATED), told
    assert "Traceback" not in told, told
    assert "fault of hasten" not in told, told
    assert "verdict" not in out
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    assert f"ended by {name}" in " ".join(told.split())


@pytest.mark.fault("SIGTERM, preemption notice")
@pytest.mark.parametrize(
    ("number", "seconds"),
    [
        (signal.SIGTERM, 0.0),
        (signal.SIGINT, 0.8),
        *(pytest.param(number, 0.3, marks=pytest.mark.proof) for number in (signal.SIGTERM, signal.SIGHUP)),
    ],
)
def test_a_command_that_is_still_starting_ends_by_a_signal(tmp_path: Path, number: int, seconds: float):
    check_ends(tmp_path / "here", number, seconds)


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
@pytest.mark.parametrize("turn", range(10))
def test_of_a_hundred_signals_in_the_first_second_and_a_half_none_is_lost(tmp_path: Path, number: int, turn: int):
    for time in range(turn, TIMES, 10):
        check_ends(tmp_path / f"{time}", number, FIRST_SECONDS * time / TIMES)


@pytest.mark.proof
def test_a_command_that_is_ended_while_its_job_loads_says_so_and_leaves_no_folder(tmp_path: Path):
    with started(tmp_path, "asked_to_end") as process:
        _, told = process.communicate()
    assert (process.returncode, told) == (TERMINATED, "ended by SIGTERM\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.proof
def test_a_command_that_is_ended_while_its_job_loads_ends_what_the_job_has_started(tmp_path: Path):
    with started(tmp_path, "beside_a_process") as process:
        process.communicate()
    assert process.returncode == TERMINATED
    child = int((tmp_path / "child").read_text())
    with suppress(psutil.NoSuchProcess):
        assert psutil.Process(child).status() == psutil.STATUS_ZOMBIE


@pytest.mark.proof
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
@pytest.mark.parametrize("seconds", [0.2, 1.0, 2.0, 3.0, 4.0])
def test_ranks_that_are_still_starting_end_by_a_signal_to_their_launcher(tmp_path: Path, number: int, seconds: float):
    code, out, told = ended(tmp_path, number, seconds, "--nproc", "2")
    assert code == (INTERRUPTED if number == signal.SIGINT else TERMINATED), told
    assert "fault of hasten" not in told, told
    assert "verdict" not in out
    assert still_there(tmp_path) == []
