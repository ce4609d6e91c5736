"""The product opens no outbound connection: every socket that it uses is one between its own processes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parent.parent

# Processes that are forked, as loader workers are, have the hook too, and write into the same file.
PROGRAM = """
import os, socket, sys

FAMILY = {"socket.connect", "socket.sendto", "socket.sendmsg", "socket.bind"}
NAMES = {"socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr", "socket.getnameinfo"}
seen = os.open("seen", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

def watch(event, arguments):
    if event in NAMES or (event in FAMILY and arguments[0].family != socket.AF_UNIX):
        os.write(seen, f"{event} {arguments[1:]}\\n".encode())

sys.addaudithook(watch)
"""
TRAIN = """
from hasten.cli import app
job = ["jobs_of_tests.py:job"]
app(["train", *job, "--run-dir", "run"], standalone_mode=False)
"""
MORE = """
app(["train", *job, "--plan", "plan.toml"], standalone_mode=False)
app(["train", *job, "--resume", "--run-dir", "run"], standalone_mode=False)
app(["export", "run", "-o", "out.safetensors"], standalone_mode=False)
app(["train", *job, "--weights", "out.safetensors"], standalone_mode=False)
app(["checkpoints", "run"], standalone_mode=False)
app(["report", "run"], standalone_mode=False)
"""
JOBS = """
from support import small_job

class Rows:
    def __init__(self, rows, labels): self.rows, self.labels = rows, labels
    def __len__(self): return len(self.rows)
    def __getitem__(self, index): return self.rows[index], self.labels[index]

def job():
    rows = Rows(*small_job().train)
    return small_job(train=rows, max_steps=3)
"""


def seen_by(program: str, folder: Path, before: str = "") -> str:
    """What the hook has seen while the program ran. before: what runs without the hook, which makes imports slow."""
    (folder / "jobs_of_tests.py").write_text(JOBS)
    (folder / "plan.toml").write_text('[[choice]]\ntechnique = "loader_workers"\nvalue = 1\n')
    environment = os.environ | {"PYTHONPATH": str(TESTS)}
    done = subprocess.run(
        [sys.executable, "-c", before + PROGRAM + program],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env=environment,
    )
    assert done.returncode == 0, done.stderr
    return (folder / "seen").read_text()


def test_training_goes_nowhere(tmp_path: Path):
    assert seen_by(TRAIN, tmp_path, "import hasten.cli, hasten.entry, torchmetrics\n") == ""


@pytest.mark.proof
def test_training_and_what_follows_it_goes_nowhere(tmp_path: Path):
    assert seen_by(TRAIN + MORE, tmp_path) == ""
    assert (tmp_path / "run" / "report.html").is_file()


@pytest.mark.parametrize(
    "way",
    [
        "socket.socket().connect_ex(('127.0.0.1', 9))",
        "socket.socket(type=socket.SOCK_DGRAM).sendto(b'', ('127.0.0.1', 9))",
        "os.fork() or (socket.gethostbyname('localhost'), os._exit(0)); os.wait()",
    ],
)
def test_the_watch_sees_whoever_goes_out(tmp_path: Path, way: str):
    assert seen_by(way, tmp_path).startswith("socket.")


def test_a_socket_between_processes_is_let_through(tmp_path: Path):
    program = "a, b = socket.socketpair(); a.sendall(b'x'); c = socket.socket(socket.AF_UNIX); c.bind('here')"
    assert seen_by(program, tmp_path) == ""
