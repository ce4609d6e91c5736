"""One process at a time trains into a run's folder.

The lock is the system's own, on a file that says who holds it: process number, start time and host. Over a network file
system without such locks, who holds it is judged by what the file says.

A folder can be moved or removed while a run trains into it, and the next run begin under its name. So the lock is worth
no more than the file in its place: before a run writes there, it looks whether that is still its own.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psutil

from hasten.checkpoint.files import fill_lock_file, remove_file
from hasten.checkpoint.locks.file_lock import Lock, taken
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.formatting import printable

NAME = ".lock"
PATIENCE_SECONDS = 10.0  # the kernel takes some to free the memory of a large process, and its locks after that
BETWEEN_SECONDS = 0.05


class RunLock:
    """The lock of a run's folder, which is held."""

    def __init__(self, lock: Lock, folder: Path) -> None:
        self._lock, self._folder = lock, folder
        self._path = folder.absolute() / NAME  # a link on the way may lead elsewhere later, as what is written would
        self._began_in = None if folder.is_absolute() else os.getcwd()

    def check(self) -> None:
        """Raises StorageFailed when the folder of this name is not the run's own any more. From any thread."""
        if self._began_in is not None and self._began_in != _working_directory():
            raise StorageFailed(
                "the job has changed the working directory, so this names another folder now than when it began",
                where=str(self._folder),
                fix=f"name it in full, --run-dir {shlex.quote(str(self._path.parent))}, or change no directory",
            )
        if not self._lock.lies_at(self._path):
            raise StorageFailed(
                "the folder was moved or removed while this run trained into it, or its lock was; nothing more is "
                "written there",
                where=str(self._folder),
                fix="if it was moved, go on with the run in its new place: --resume and --run-dir",
            )


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


@contextmanager
def run_lock(folder: Path) -> Iterator[RunLock]:
    """Hold the folder's lock.

    Raises Misconfigured, naming the holder, when another run has it; StorageFailed when there can be no lock file.
    """
    path = folder.resolve() / NAME
    lock = _taken(path, folder)
    try:
        fill_lock_file(lock.descriptor, path, json.dumps(_owner_here()).encode())
        yield RunLock(lock, folder)
    finally:
        if lock.held:  # else this is a process that was forked meanwhile
            with suppress(StorageFailed):  # what the file says matters only while the lock is held
                if lock.lies_at(path):
                    remove_file(path)
        lock.let_go()


def _taken(path: Path, folder: Path) -> Lock:
    """A holder that was killed while it began a process leaves the lock with that one, until it comes to let go."""
    until = time.monotonic() + PATIENCE_SECONDS
    while True:
        lock = taken(path, without_locks=lambda lock: _free_by_its_word(lock, folder))
        if lock.held:
            return lock
        owner = _written(lock)
        lock.let_go()
        if not owner or is_alive(owner):
            raise _held_by(folder, owner)
        if time.monotonic() >= until:
            what = f"{_named(owner)}, which the folder's lock names, is not there, but something holds the lock"
            fix = f"{shlex.join(['fuser', '-v', str(path)])} shows it; end it, or name another folder with --run-dir"
            raise Misconfigured(what, where=str(folder), fix=fix)
        time.sleep(BETWEEN_SECONDS)


def _free_by_its_word(lock: Lock, folder: Path) -> bool:
    owner = _written(lock)
    if owner and is_alive(owner):
        raise _held_by(folder, owner, f"; when that has ended, remove {folder / NAME}")
    return True


def is_alive(owner: dict[str, Any]) -> bool:
    """Whether the process that a lock file names may still be there; of one on another host nobody can know."""
    if owner.get("host") != socket.gethostname():
        return True
    try:
        process = psutil.Process(int(owner["pid"]))
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() == owner["started"]
    except (psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        return False


def _owner_here() -> dict[str, Any]:
    process = psutil.Process()
    return {"pid": process.pid, "started": process.create_time(), "host": socket.gethostname()}


def _written(lock: Lock) -> dict[str, Any]:
    """What the file says of its holder; it is read as untrusted text."""
    try:
        found = json.loads(os.pread(lock.descriptor, 1000, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _named(owner: dict[str, Any]) -> str:
    pid, host = owner.get("pid"), owner.get("host")
    return (
        f"process {pid} on {printable(host)}" if isinstance(pid, int) and isinstance(host, str) else "another process"
    )


def _held_by(folder: Path, owner: dict[str, Any], otherwise: str = "") -> Misconfigured:
    return Misconfigured(
        f"{_named(owner)} trains into this folder",
        where=str(folder),
        fix=f"wait for it or end it first, or name another folder with --run-dir{otherwise}",
    )
