"""One process at a time trains into a run's folder.

The lock is the system's own, on a file that says who holds it: process number, start time and host. The system frees it
when the holder ends, however that happens, so a lock is never stale; and a process that the holder forked does not hold
it on, as it would hold a lock of flock's. Over a network file system without such locks, who holds it is judged by what
the file says.

Source: fcntl(2), "Advisory record locking".
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
_HELD: set[Path] = set()  # by this process, to which the system never refuses its own lock


@contextmanager
def run_lock(folder: Path) -> Iterator[None]:
    """Hold the folder's lock.

    Raises Misconfigured, naming the holder, when another run has it; StorageFailed when there can be no lock file.
    """
    path = folder.resolve() / NAME
    if path in _HELD:
        raise _held_by(folder, _owner_here())
    descriptor = _taken(path, folder)
    try:
        fill_lock_file(descriptor, json.dumps(_owner_here()).encode())
        _HELD.add(path)
        try:
            yield
        finally:
            _HELD.discard(path)
            with suppress(StorageFailed):  # what the file says matters only while the lock is held
                remove_file(path)
    finally:
        os.close(descriptor)  # which frees it


def _taken(path: Path, folder: Path) -> int:
    while True:
        descriptor = open_lock_file(path)
        try:
            _take(descriptor, folder)
            if lies_at(descriptor, path):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)  # its holder has removed it meanwhile: a lock on it would be none


def _take(descriptor: int, folder: Path) -> None:
    import fcntl  # not on Windows

    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        owner = _written(descriptor)
        if error.errno in (errno.EACCES, errno.EAGAIN):
            raise _held_by(folder, owner) from None
        if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL):
            raise failure(f"could not be locked: {error.strerror}", folder / NAME, error) from error
        if owner and is_alive(owner):
            raise _held_by(folder, owner) from None


def is_alive(owner: dict[str, Any]) -> bool:
    """Whether the process that a lock file names may still be there; of one on another host nobody can know."""
    if owner.get("host") != socket.gethostname():
        return True
    try:
        return psutil.Process(int(owner["pid"])).create_time() == owner["started"]
    except (psutil.Error, KeyError, TypeError, ValueError):
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


def _held_by(folder: Path, owner: dict[str, Any]) -> Misconfigured:
    who = f"process {owner['pid']} on {owner.get('host', 'another host')}" if "pid" in owner else "another process"
    return Misconfigured(
        f"{who} trains into this folder",
        where=str(folder),
        fix="wait for it or end it first, or name another folder with --run-dir",
    )
