"""One process at a time trains into a run's folder.

The lock file records its owner: process number, start time and host. The lock itself is the system's, so a dead owner
never blocks. On a network file system without locks, the recorded owner decides: one that is dead is replaced, one that
is alive, or on another host, is refused.

A folder can be moved or removed while a run trains into it, and another run can begin under its name. So before a run
saves or removes anything there, check() compares the lock file in the folder with the one that was taken.
"""

from __future__ import annotations

import errno
import json
import os
import shlex
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import psutil

from hasten.checkpoint.files import fill_lock_file, remove_file
from hasten.checkpoint.locks.file_lock import file_lock, taken
from hasten.checkpoint.storage_errors import failing
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.formatting import printable
from hasten.regular_files import read_regular

if TYPE_CHECKING:
    from filelock import BaseFileLock

NAME = ".lock"
PATIENCE_SECONDS = 10.0  # a killed process with much memory keeps its locks until that is freed
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
_LONGEST = 1000  # bytes of a record that is believed


class RunLock:
    """The lock of a run's folder, held. path: of the lock file, absolute, as the job may change the directory."""

    def __init__(self, path: Path) -> None:
        self._path, self._found = path, os.lstat(path)

    def check(self) -> None:
        """Raises StorageFailed when the folder of this name is no longer the run's own. Any thread may call it."""
        if not self.is_in_place():
            raise StorageFailed(
                "the folder, or its lock file, was moved or removed while this run was training in it; nothing more is "
                "written there",
                where=str(self._path.parent),
                fix="if it was moved, resume the run in its new place: --resume and --run-dir",
            )

    def is_in_place(self) -> bool:
        """Whether the file of this name is the lock file that was taken. Raises StorageFailed."""
        with failing("could not be examined", self._path):
            try:
                return os.path.samestat(os.lstat(self._path), self._found)
            except FileNotFoundError:
                return False


@contextmanager
def run_lock(folder: Path) -> Iterator[RunLock]:
    """Hold the folder's lock.

    Raises Misconfigured, naming the owner, when another run holds it; StorageFailed when there can be no lock file.
    """
    path, process, own = folder.absolute() / NAME, psutil.Process(), None
    lock = _taken(path, folder)
    try:
        record = {"pid": process.pid, "started": process.create_time(), "host": socket.gethostname()}
        fill_lock_file(path, json.dumps(record).encode())
        own = RunLock(path)
        yield own
    finally:
        if os.getpid() == process.pid:  # else this process was forked meanwhile
            with suppress(StorageFailed):  # a lock file that stays blocks nobody
                if own is None or own.is_in_place():
                    remove_file(path)
        lock.release()


def _taken(path: Path, folder: Path) -> BaseFileLock:
    lock = file_lock(path)
    try:
        if taken(lock):
            return lock
        owner = _recorded(path)
        if not owner or is_alive(owner):
            raise _held_by(folder, owner)
        if taken(lock, PATIENCE_SECONDS):
            return lock
    except StorageFailed as error:
        if not isinstance(error.__cause__, OSError) or error.__cause__.errno not in _NO_LOCKS:
            raise
        owner = _recorded(path)
        if owner and is_alive(owner):
            raise _held_by(folder, owner, f"; when that has ended, remove {folder / NAME}") from None
        return lock
    what = f"{_named(owner)} locked this folder and has ended, but another process still holds the lock"
    fix = f"{shlex.join(['fuser', '-v', str(path)])} shows it; end it, or name another folder with --run-dir"
    raise Misconfigured(what, where=str(folder), fix=fix)


def is_alive(owner: dict[str, Any]) -> bool:
    """Whether a recorded owner may still run; always for one on another host."""
    if owner.get("host") != socket.gethostname():
        return True
    try:
        process = psutil.Process(int(owner["pid"]))
        return process.status() != psutil.STATUS_ZOMBIE and process.create_time() == owner["started"]
    except (psutil.Error, KeyError, TypeError, ValueError, OverflowError):
        return False


def _recorded(path: Path) -> dict[str, Any]:
    """The owner in a lock file, which is untrusted text; empty where it makes no sense."""
    try:
        found = json.loads(read_regular(path, _LONGEST))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _named(owner: dict[str, Any]) -> str:
    match owner:
        case {"pid": int(pid), "host": str(host)}:
            return f"process {pid} on {printable(host)}"
    return "another process"


def _held_by(folder: Path, owner: dict[str, Any], otherwise: str = "") -> Misconfigured:
    fix = f"wait for it, end it, or name another folder with --run-dir{otherwise}"
    return Misconfigured(f"{_named(owner)} is training in this folder", where=str(folder), fix=fix)
