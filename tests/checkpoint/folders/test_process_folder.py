"""A process's temporary folder goes with it, and what a killed one left goes with the next one's start."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten.checkpoint.folders import process_folder
from hasten.checkpoint.locks.file_lock import locked, taken


@pytest.fixture(autouse=True)
def place(monkeypatch) -> Iterator[Path]:
    """Where the system keeps temporary folders, by a name that is short enough for sockets; and a process that has none
    yet."""
    with tempfile.TemporaryDirectory(prefix="h-") as folder:
        monkeypatch.setenv("TMPDIR", folder)
        monkeypatch.setattr(tempfile, "tempdir", None)
        monkeypatch.setattr(process_folder, "_mine", None)
        yield Path(folder)


def ended(program: str) -> tuple[int, Path]:
    """A Python that runs this and has said where its folder is."""
    begin = (
        "from hasten.checkpoint.folders.process_folder import *; folder = process_folder(); print(folder, flush=True)"
    )
    text = f"{begin}; {program}"
    done = subprocess.Popen([sys.executable, "-c", text], stdout=subprocess.PIPE, text=True)
    with done:
        return done.wait(), Path(done.stdout.readline().strip() if done.stdout else "")


def cannot(path: Path) -> None:
    raise OSError(errno.ENOTEMPTY, "something else has come to lie in it", path)


def test_a_process_has_one_folder_which_nobody_else_can_read(place):
    folder = process_folder.process_folder()
    assert folder.parent == place
    assert folder.stat().st_mode & 0o777 == 0o700
    assert process_folder.process_folder() == folder


@pytest.mark.proof
def test_it_is_gone_with_its_process_and_so_is_what_lies_in_it(place):
    code, folder = ended("(folder / 'much').mkdir(); (folder / 'much' / 'more').write_text('x')")
    assert (code, folder.parent) == (0, place)
    assert not folder.exists()


def test_what_a_killed_process_left_is_removed_by_the_next_one(place):
    code, folder = ended("import os; (folder / 'left').write_text('x'); os.kill(os.getpid(), 9)")
    assert (code, (folder / "left").exists()) == (-signal.SIGKILL, True)
    mine = process_folder.process_folder()
    assert [*place.iterdir()] == [mine]


def test_what_processes_left_that_it_has_forked_goes_with_it(place):
    fork = "import os, multiprocessing as m; p = m.get_context('fork').Process(target=process_folder)"
    code, _ = ended(f"{fork}; p.start(); p.join(); assert len(os.listdir(folder.parent)) == 2")
    assert (code, [*place.iterdir()]) == (0, [])


@pytest.mark.proof
def test_what_cannot_be_removed_now_is_tried_again(place, monkeypatch):
    _, folder = ended("import os; [(folder / name).touch() for name in 'abcdefgh']; os.kill(os.getpid(), 9)")
    with monkeypatch.context() as failing:
        failing.setattr(Path, "rmdir", cannot)
        failing.setattr(Path, "unlink", lambda path: os.unlink(path) if path.name < "e" else cannot(path))
        process_folder.remove_what_the_dead_left()
    assert folder.is_dir()
    process_folder.remove_what_the_dead_left()
    assert not [*place.iterdir()]


@pytest.mark.proof
def test_it_is_nobodys_when_only_workers_are_left_of_its_process(place):
    program = (
        "import os, signal; lives, says = os.pipe(); child = os.fork()\n"
        "if child == 0: os.setsid(); os.write(says, b'x'); signal.pause()\n"
        "os.read(lives, 1)\n"
        "(place := Path(tempfile.gettempdir()) / 'child').write_text(str(child)); os.kill(os.getpid(), 9)"
    )
    code, folder = ended(program)
    child = int((place / "child").read_text())
    try:
        assert (code, folder.is_dir()) == (-signal.SIGKILL, True)
        process_folder.process_folder()
        assert not folder.exists()
    finally:
        os.kill(child, signal.SIGKILL)


def test_a_folder_that_another_process_locked_first_and_removed_is_made_again(place, monkeypatch):
    def too_late(lock):
        monkeypatch.setattr(process_folder, "taken", taken)
        Path(lock.lock_file).touch()
        process_folder.remove_what_the_dead_left()
        return False

    monkeypatch.setattr(process_folder, "taken", too_late)
    folder = process_folder.process_folder()
    assert [*place.iterdir()] == [folder]


def test_what_a_living_process_and_others_have_there_stays(place):
    theirs, plain, unlocked = place / "hasten-living__", place / "hasten-1", place / "hasten-nolocked"
    for each in (theirs, plain, unlocked):
        each.mkdir()
    with locked(theirs / ".lock", None):
        process_folder.process_folder()
        assert all(each.is_dir() for each in (theirs, plain, unlocked))
