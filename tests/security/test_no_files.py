"""A named pipe, a socket, a folder or a device under the name of a file: whoever opens it says so at once."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

import hasten
from hasten.errors import HastenError
from hasten.training.weights.initial_weights import InitialWeights
from support.cli.commands import ran
from support.data.small_shards import packed_folder, picture
from support.report.samples import write_plan
from support.training.complete_runs import complete_run

from .doors import read_cache

JOBS = """
from support import small_job

def job():
    return small_job()
"""


def a_socket(path: Path) -> None:
    """A socket's path may have 108 bytes, so it is bound by its name alone."""
    before = Path.cwd()
    os.chdir(path.parent)
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(path.name)
    os.chdir(before)


KINDS: dict[str, Callable[[Path], None]] = {
    "a named pipe": os.mkfifo,
    "a socket": a_socket,
    "a folder": Path.mkdir,
    "a device": lambda path: path.symlink_to("/dev/zero"),
}


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """Whatever blocks in a call of the system is interrupted."""

    def late(*_: object) -> None:
        raise AssertionError(f"it still waits after {seconds} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def put(kind: str, path: Path) -> None:
    """In place of the file that is there."""
    path.unlink(missing_ok=True)
    KINDS[kind](path)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    base = tmp_path_factory.mktemp("sound")
    run = complete_run(base / "run")
    for name in ("step-8", "step-6"):
        shutil.rmtree(run / "checkpoints" / name)
    write_plan(base)
    (base / "given.toml").write_text('[[choice]]\ntechnique = "clipping"\nvalue = 1.0\n')
    (base / "jobs_of_tests.py").write_text(JOBS)
    (base / "trains.py").write_text(JOBS)
    (base / "notebook.ipynb").write_text("{}")
    (base / "pyproject.toml").write_text("")
    torch.save({"weight": torch.zeros(1)}, base / "weights.pt")
    shutil.copy(run / "model.safetensors", base / "weights.safetensors")
    packed_folder(base)
    picture(base / "pictures" / "a" / "1.jpg", 1)
    read_cache(base / "caches")
    return base


@pytest.fixture
def here(sound: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    shutil.copytree(sound, tmp_path / "copy")
    monkeypatch.chdir(tmp_path / "copy")
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delitem(sys.modules, "jobs_of_tests", raising=False)
    return tmp_path / "copy"


CHECKPOINT = "run/checkpoints/step-10"
JOB = "jobs_of_tests.py:job"
RESUME = f"train {JOB} --resume --run-dir run --save-every 100"
COMMANDS = [  # the command, what it reads, and the exit code
    ("report plan.toml", "plan.trials.jsonl", 15),
    ("report run", "run/metrics.jsonl", 15),
    ("report run", "run/plan.toml", 15),
    (f"train {JOB} --plan given.toml", "given.toml", 15),
    (f"train {JOB} --weights weights.pt", "weights.pt", 2),
    (f"train {JOB} --weights weights.safetensors", "weights.safetensors", 2),
    (f"train {JOB}", "jobs_of_tests.py", 2),
    (RESUME, "run/plan.toml", 15),
    (RESUME, "run/metrics.jsonl", 15),
    (RESUME, "run/.lock", 15),
    (RESUME, f"{CHECKPOINT}/manifest.json", 15),
    ("export run -o out.safetensors", f"{CHECKPOINT}/state.json", 15),
    ("export run -o out.safetensors", f"{CHECKPOINT}/tensors.safetensors", 15),
    (f"tune {JOB} -o plan.toml", "plan.toml", 15),
    (f"tune {JOB} -o new.toml", "new.trials.jsonl", 15),
    ("doctor trains.py", "trains.py", 2),
    ("doctor notebook.ipynb", "notebook.ipynb", 2),
    ("doctor trains.py", "pyproject.toml", 2),
    ("pack shards --verify", "shards/index.json", 11),
    ("pack shards --verify", "shards/index.bin", 11),
    ("pack shards --verify", "shards/shard-000000.tar", 11),
    ("pack pictures packed", "pictures/a/1.jpg", 11),
]
READERS: list[tuple[Callable[[], object], str]] = [
    (lambda: hasten.read_plan("given.toml"), "given.toml"),
    (lambda: hasten.read_weights("weights.pt"), "weights.pt"),
    (lambda: hasten.Shards("shards"), "shards/index.json"),
    (lambda: hasten.Shards("shards/shard-000000.tar"), "shards/shard-000000.tar"),
    (lambda: InitialWeights.recorded(Path("run")), "run/initial_weights.json"),
]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("line", "file", "code"), COMMANDS, ids=[f"{line} | {file}" for line, file, _ in COMMANDS])
def test_a_command_says_what_is_no_file(here: Path, line: str, file: str, code: int, kind: str):
    if kind == "a folder" and line == f"doctor {file}":
        return  # a folder is searched for source files
    put(kind, here / file)
    with within(10):
        ended, _, error = ran(line)
    assert kind in error
    assert ended in (code, 2) if kind == "a folder" else ended == code


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("read", "file"), READERS, ids=[file for _, file in READERS])
def test_a_function_says_what_is_no_file(here: Path, read: Callable[[], object], file: str, kind: str):
    put(kind, here / file)
    with within(10), pytest.raises(HastenError, match=kind):
        read()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("file", ["manifest.json", "data.bin", "index.bin"])
def test_a_cache_with_something_else_than_its_files_is_rebuilt(here: Path, file: str, kind: str):
    (cache,) = (each for each in (here / "caches").iterdir() if each.is_dir())
    put(kind, cache / file)
    with within(10):
        read_cache(here / "caches")
    assert (cache / file).is_file()
