"""Commands that train on several processes of this machine, as tests give them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import psutil

TESTS = Path(__file__).parents[2]
JOBS = TESTS / "support" / "parallel" / "launched_jobs.py"


def command(function: str, *options: str) -> list[str]:
    return [sys.executable, "-m", "hasten", "train", f"{JOBS}:{function}", *options]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])}


def ran(folder: Path, function: str, *options: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(function, *options), cwd=folder, env=environment(), capture_output=True, text=True, check=False
    )


def still_there(folder: Path) -> list[psutil.Process]:
    """Processes that work in this folder, where every rank of a test does."""
    found = []
    for each in psutil.process_iter():
        try:
            if each.cwd() == str(folder):
                found.append(each)
        except psutil.Error:
            continue
    return found


def losses(folder: Path) -> list[float]:
    events = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [each["loss"] for each in events if each["event"] == "trained"]
    assert found
    return found


def until_begun(file: Path, process: subprocess.Popen[str]) -> None:
    while not file.exists():
        assert process.poll() is None
        psutil.wait_procs([psutil.Process(process.pid)], timeout=0.05)
