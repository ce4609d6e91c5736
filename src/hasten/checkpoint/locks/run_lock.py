"""One process at a time trains into a run's folder.

The lock file records its owner: process number, start time and host. The lock itself is the system's, so a dead owner
never blocks. On a network file system without locks, the recorded owner decides: one that is dead is replaced, one that
is alive, or on another host, is refused.

A folder can be moved or removed while a run trains into it, and another run can begin under its name. So before a run
writes there, check() compares the lock file in the folder with the one that was taken.
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
from hasten.checkpoint.storage_errors import failure
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.formatting import printable

if TYPE_CHECKING:
    from filelock import BaseFileLock

NAME = ".lock"
PATIENCE_SECONDS = 10.0  # a killed process with much memory keeps its locks until that is freed
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)
_LONGEST = 1000  # bytes of a record that is believed


class RunLock:
    """The lock of a run's folder, held."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._path = folder.absolute() / NAME  # not resolved: a link on the way may be changed
        self._found = os.lstat(self._path.parent.resolve() / NAME)
        self._began_in = None if folder.is_absolute() else os.getcwd()

    def check(self) -> None:
        """Raises StorageFailed when the folder of this name is no longer the run's own. Any thread may call it."""
        if self._began_in is not None and self._began_in != _working_directory():
            raise StorageFailed(
                "the job has changed the working directory, so this relative path names another folder now",
                where=str(self._folder),
                fix=f"give the absolute path, --run-dir {shlex.quote(str(self._path.parent))}",
            )
        if not self.is_in(self._path):
            raise StorageFailed(
                "the folder, or its lock file, was moved or removed while this run trained into it; nothing more is "
                "written there",
                where=str(self._folder),
                fix="if it was moved, resume the run in its new place: --resume and --run-dir",
            )

    def is_in(self, path: Path) -> bool:
        """Whether the file of this name is the lock file that was taken. Raises StorageFailed."""
        try:
            return os.path.samestat(os.lstat(path), self._found)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise failure("could not be examined", path, error) from error


def _working_directory() -> str | None:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return None


@contextmanager
def run_lock(folder: Path) -> Iterator[RunLock]:
    """Hold the folder's lock.

    Raises Misconfigured, naming the owner, when another run holds it; StorageFailed when there can be no lock file.
    """
    path, process = folder.resolve() / NAME, psutil.Process()
    lock = _taken(path, folder)
    try:
        record = {"pid": process.pid, "started": process.create_time(), "host": socket.gethostname()}
        own = None
        try:
            fill_lock_file(path, json.dumps(record).encode())
            own = RunLock(folder)
            yield own
        finally:
            if os.getpid() == process.pid:  # else this process was forked meanwhile
                with suppress(StorageFailed):  # a lock file that stays blocks nobody
                    if own is None or own.is_in(path):
                        remove_file(path)
    finally:
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
    what = f"{_named(owner)}, which the folder's lock names, has ended, but another process still holds the lock"
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
        with path.open("rb") as file:
            found = json.loads(file.read(_LONGEST))
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
        fix=f"wait for it, end it, or name another folder with --run-dir{otherwise}",
    )
