"""One process at a time trains into a run's folder.

The lock is the system's own, on a file that says who holds it: process number, start time and host. The system frees it
when the holder ends, however that happens, so a lock is never stale. What the holder forked would hold it on, and so
closes it first of all. (A lock of fcntl's would not be held on, but lost as soon as anything in the holder has read the
file, as one does who copies the folder.) Over a network file system without such locks, who holds it is judged by what
the file says.

Source: flock(2); fcntl(2), "Advisory record locking".
"""

from __future__ import annotations

import errno
import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import psutil

from hasten.checkpoint.files import failure, fill_lock_file, lies_at, open_lock_file, remove_file
from hasten.errors import Misconfigured, StorageFailed

NAME = ".lock"
_OPEN: set[int] = set()  # descriptors of locks that this process holds, or is about to


def _let_go() -> None:
    """In a process that was forked: what its parent holds must not outlive it here."""
    for descriptor in _OPEN:
        os.close(descriptor)
    _OPEN.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_let_go)


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock.

    Raises Misconfigured, naming the holder, when another run has it; StorageFailed when there can be no lock file.
    """
    path = folder.resolve() / NAME
    descriptor = _taken(path, folder)
    try:
        fill_lock_file(descriptor, path, json.dumps(_owner_here()).encode())
        yield
    finally:
        if descriptor in _OPEN:  # else this is a process that was forked meanwhile
            with suppress(StorageFailed):  # what the file says matters only while the lock is held
                remove_file(path)
            _close(descriptor)  # which frees it


def _taken(path: Path, folder: Path) -> int:
    while True:
        descriptor = open_lock_file(path)
        _OPEN.add(descriptor)
        try:
            _take(descriptor, folder)
            if lies_at(descriptor, path):
                return descriptor
        except BaseException:
            _close(descriptor)
            raise
        _close(descriptor)  # its holder has removed it meanwhile: a lock on it would be none


def _close(descriptor: int) -> None:
    _OPEN.discard(descriptor)
    os.close(descriptor)


def _take(descriptor: int, folder: Path) -> None:
    import fcntl  # not on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = _written(descriptor)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise _held_by(folder, owner) from None
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS):
            raise failure("could not be locked", folder / NAME, error) from error
        if owner and is_alive(owner):
            raise _held_by(folder, owner, f"; when that has ended, remove {folder / NAME}") from None


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


def _written(descriptor: int) -> dict[str, Any]:
    """What the file says of its holder; it is read as untrusted text."""
    try:
        found = json.loads(os.pread(descriptor, 1000, 0))
    except (OSError, ValueError, RecursionError):
        return {}
    return cast("dict[str, Any]", found) if isinstance(found, dict) else {}


def _held_by(folder: Path, owner: dict[str, Any], otherwise: str = "") -> Misconfigured:
    pid, host = owner.get("pid"), owner.get("host")
    who = f"process {pid} on {host}" if isinstance(pid, int) and isinstance(host, str) else "another process"
    return Misconfigured(
        f"{who} trains into this folder",
        where=str(folder),
        fix=f"wait for it or end it first, or name another folder with --run-dir{otherwise}",
    )
