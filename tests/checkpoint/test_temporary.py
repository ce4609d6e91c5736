"""A process's temporary folder goes with it, and what a killed one left goes with the next one's start."""

from __future__ import annotations

import errno
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

import hasten
from hasten.checkpoint.folders import process_folder
from hasten.checkpoint.locks.file_lock import locked
from hasten.errors import StorageFailed
from support import small_job


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


def test_it_is_gone_with_its_process_and_so_is_what_lies_in_it(place):
    code, folder = ended("(folder / 'much').mkdir(); (folder / 'much' / 'more').write_text('x')")
    assert (code, folder.parent) == (0, place)
    assert not folder.exists()


def test_what_a_killed_process_left_is_removed_by_the_next_one(place):
    code, folder = ended("import os; (folder / 'left').write_text('x'); os.kill(os.getpid(), 9)")
    assert (code, (folder / "left").exists()) == (-signal.SIGKILL, True)
    mine = process_folder.process_folder()
    assert [*place.iterdir()] == [mine]


def test_it_goes_also_with_a_training_that_needs_none_of_its_own(place):
    ended("import os; os.kill(os.getpid(), 9)")
    hasten.train(small_job(max_steps=1), receivers=[])
    assert not [*place.glob("hasten-*")]


def test_what_cannot_be_removed_now_is_tried_again(place, monkeypatch):
    _, folder = ended("import os; [(folder / name).touch() for name in 'abcdefgh']; os.kill(os.getpid(), 9)")
    with monkeypatch.context() as failing:
        failing.setattr(Path, "rmdir", cannot)
        failing.setattr(Path, "unlink", lambda path: os.unlink(path) if path.name < "e" else cannot(path))
        process_folder.remove_what_the_dead_left()
    assert folder.is_dir()
    process_folder.remove_what_the_dead_left()
    assert not [*place.iterdir()]


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


def test_what_a_living_process_and_others_have_there_stays(place):
    theirs, plain, unlocked = place / "hasten-living__", place / "hasten-1", place / "hasten-nolocked"
    for each in (theirs, plain, unlocked):
        each.mkdir()
    with locked(theirs / ".lock", None):
        process_folder.process_folder()
        assert all(each.is_dir() for each in (theirs, plain, unlocked))


def test_a_link_is_not_followed_to_what_it_leads_to(place, tmp_path_factory):
    kept = tmp_path_factory.mktemp("kept")
    (kept / ".lock").touch()
    (place / "hasten-a_link_8").symlink_to(kept)
    process_folder.process_folder()
    assert (kept / ".lock").exists()


def test_a_folder_that_another_process_took_for_a_dead_ones_is_made_again(monkeypatch):
    make = tempfile.mkdtemp

    def made_and_taken(**options: str) -> str:
        folder = Path(make(**options))
        monkeypatch.setattr(tempfile, "mkdtemp", make)
        folder.rmdir()
        return str(folder)

    monkeypatch.setattr(tempfile, "mkdtemp", made_and_taken)
    assert (process_folder.process_folder() / ".lock").exists()


def test_where_no_folder_can_be_made_it_is_said_where(place, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(place / "missing"))
    with pytest.raises(StorageFailed, match="no temporary folder could be made") as caught:
        process_folder.process_folder()
    assert caught.value.where == str(place / "missing")


def test_where_the_system_has_no_place_for_it_what_is_left_is_no_matter(monkeypatch):
    def nowhere() -> str:
        raise FileNotFoundError(2, "No usable temporary directory found")

    monkeypatch.setattr(tempfile, "gettempdir", nowhere)
    process_folder.remove_what_the_dead_left()
    with pytest.raises(StorageFailed, match="No usable temporary directory"):
        process_folder.process_folder()


def test_worker_processes_keep_their_sockets_in_it(place):
    program = (
        "import multiprocessing, os; from multiprocessing.connection import Listener; keep_sockets_here()\n"
        "def work(): kept = Listener(family='AF_UNIX'); os.kill(os.getpid(), 9)\n"
        "worker = multiprocessing.get_context('fork').Process(target=work); worker.start(); worker.join()\n"
        "print(*(each.name for each in folder.iterdir()))"
    )
    text = f"from hasten.checkpoint.folders.process_folder import *; folder = process_folder(); {program}"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert sorted(name.partition("-")[0] for name in done.stdout.split()) == [".lock", "listener"]
    assert done.stderr == ""
    assert not [*place.iterdir()]


def test_where_sockets_have_a_place_already_it_stays(place, monkeypatch):
    told = {"tempdir": str(place)}
    monkeypatch.setattr(multiprocessing.current_process(), "_config", told)
    process_folder.keep_sockets_here()
    assert told == {"tempdir": str(place)}
    told["tempdir"] = str(place / "gone")
    process_folder.keep_sockets_here()
    assert told == {"tempdir": str(process_folder.process_folder())}


def test_where_no_socket_can_be_it_is_said_before_workers_start(place, monkeypatch):
    deep = place / ("d" * 76)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(StorageFailed, match="too long for the sockets of loader workers") as caught:
        process_folder.keep_sockets_here()
    assert (caught.value.where, "TMPDIR" in caught.value.fix) == (str(deep), True)
