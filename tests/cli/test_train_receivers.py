"""hasten train --receiver, and a standard output that cannot be written: neither ends a run."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hasten.training.run_folder.run_request import asked_in
from support.cli.commands import ran

JOBS = """
from support import small_job

def job():
    return small_job(log_every=1, max_steps=4)
"""
SENDING = """
from hasten.facts.events import Trained

print("loaded")

def send(event):
    with open("sent", "a") as file:
        file.write(f"{type(event).__name__} ")

def fail(event):
    if isinstance(event, Trained) and event.step == 2:
        raise ConnectionError("no network")

def nothing():
    pass
"""


@pytest.fixture
def here(tmp_path: Path) -> Path:
    (tmp_path / "train_jobs.py").write_text(JOBS)
    (tmp_path / "sending.py").write_text(SENDING)
    return tmp_path


def notices_in(folder: Path) -> list[str]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    return [line["text"] for line in lines if line["event"] == "noticed"]


def test_receivers_are_called_beside_the_progress_and_one_that_fails_is_dropped(here: Path):
    code, shown, _ = ran("train train_jobs.py:job --receiver sending.py:send --receiver sending.py:fail")
    assert code == 0
    assert shown.count("loaded") == 1
    assert "why       the planned run is complete" in shown
    assert Path("sent").read_text().split()[::5] == ["Started", "Trained"]
    assert Path("sent").read_text().split()[-1] == "Finished"
    (notice,) = notices_in(here / "runs" / "job-1")
    assert "the receiver fail failed and is not called any more: ConnectionError: no network (sending.py:12" in notice
    assert notice in " ".join(shown.split())


def test_a_resumed_run_takes_its_receivers_again(here: Path):
    assert ran("train train_jobs.py:job --receiver sending.py:send --run-dir run")[0] == 0
    Path("sent").unlink()
    code, shown, _ = ran("train train_jobs.py:job --resume --run-dir run")
    assert code == 0
    assert "options taken from the run: --receiver sending.py:send" in shown
    assert Path("sent").read_text().split() == ["Resumed", "Finished"]
    ran("train train_jobs.py:job --resume --run-dir run --receiver sending.py:fail")
    asked = asked_in(here / "run")
    assert asked is not None
    assert asked.receivers == ("sending.py:fail",)


def test_a_resumed_run_loads_no_code_that_only_its_folder_names(here: Path):
    """The folder may come from elsewhere. What lies beside the job's own file can be imported by it anyway."""
    (here / "other").mkdir()
    (here / "sending.py").rename(here / "other" / "elsewhere.py")
    assert ran("train train_jobs.py:job --receiver other/elsewhere.py:send --run-dir run")[0] == 0
    Path("sent").unlink()
    code, shown, _ = ran("train train_jobs.py:job --resume --run-dir run")
    assert code == 0
    assert "--receiver other/elsewhere.py:send is not taken from the run" in shown
    assert not Path("sent").exists()


@pytest.mark.parametrize(
    ("name", "says", "fix"),
    [
        ("sending", "names no function of a file", "file.py:function"),
        ("sending:send", "a receiver is named by its file, not by its module", "file.py:function"),
        ("missing.py:send", "there is no such file", "sending.py"),
        ("sending.py:sent", 'there is no function "sent"', '"send"'),
        ("sending.py:nothing", "is <function nothing", "plain function of one event"),
    ],
)
def test_what_is_no_receiver_is_refused_before_training(here: Path, name: str, says: str, fix: str):
    code, _, error = ran(f"train train_jobs.py:job --receiver {name}")
    assert code == 2
    assert says in error
    assert fix in error
    assert not (here / "runs" / "job-1").exists()


@pytest.mark.parametrize("output", ["a closed pipe", "closed", "a full disk"])
def test_a_standard_output_that_cannot_be_written_ends_no_run(here: Path, output: str):
    arguments = [sys.executable, "-m", "hasten", "train", "train_jobs.py:job", "--run-dir", "run"]
    path = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])
    environment = os.environ | {"PYTHONPATH": path}
    if output == "closed":
        arguments = ["sh", "-c", 'exec "$0" "$@" >&-', *arguments]
    with open("/dev/full", "w") as full:
        stdout = full if output == "a full disk" else subprocess.PIPE
        process = subprocess.Popen(arguments, stdout=stdout, stderr=subprocess.PIPE, text=True, env=environment)
    if process.stdout is not None:
        process.stdout.close()
        process.stdout = None
    _, error = process.communicate()
    assert process.returncode == 0, error
    assert "Traceback" not in error
    assert "Exception ignored" not in error
    (notice,) = notices_in(here / "run")
    assert notice.startswith("the receiver Progress failed and is not called any more: ")
    assert (here / "run" / "model.safetensors").is_file()
