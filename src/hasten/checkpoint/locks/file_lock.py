"""A lock file that one process at a time holds, by the package filelock: flock(2) on Linux.

The system frees the lock when its holder ends, however that happens, so a lock is never stale. A forked child does not
hold its parent's lock. The file stays after the release, unless the holder removes it first: then whoever waited takes
the next file of that name.

Source: https://py-filelock.readthedocs.io
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.checkpoint.storage_errors import failing
from hasten.errors import StorageFailed
from hasten.regular_files import check_regular

if TYPE_CHECKING:
    from filelock import BaseFileLock


@contextmanager
def locked(path: Path, waits: Callable[[], None] | None) -> Iterator[bool]:
    """Hold the lock; the value says whether this process does. Raises StorageFailed as `taken` does.

    waits: called when another process holds the lock, before waiting for it. None: do not wait.
    """
    lock = file_lock(path)
    held = taken(lock)
    if not held and waits is not None:
        waits()
        held = taken(lock, seconds=-1)
    try:
        yield held
    finally:
        lock.release()


def file_lock(path: Path) -> BaseFileLock:
    """The lock of this file, not yet taken. Any thread may release it."""
    from filelock import FileLock  # takes long to import, and few commands need it

    # Mode 0600: whoever can open the file can hold its lock. A soft lock would write a record of its own into it.
    return FileLock(path, mode=0o600, thread_local=False, fallback_to_soft=False)


def taken(lock: BaseFileLock, seconds: float = 0.0) -> bool:
    """Whether this process holds the lock now. seconds: to wait for another holder; without limit below 0.

    Raises StorageFailed where there can be no such file, or no lock on it.
    """
    from filelock import Timeout

    path = Path(lock.lock_file)
    if not path.parent.is_dir():  # filelock would make it
        raise StorageFailed("could not be locked: there is no folder", where=str(path), fix="create the folder first")
    with failing("could not be locked", path):
        with suppress(FileNotFoundError):
            check_regular(path)
        try:
            lock.acquire(timeout=seconds)
        except Timeout:
            return False
    return True
