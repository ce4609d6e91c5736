"""A lock that is a file: of all processes of this machine that ask for it, one has it.

The system frees it when its holder ends, however that happens, so a lock is never stale. What the holder forked would
hold it on, and so closes it first of all. (A lock of fcntl's would not be held on, but lost as soon as anything in the
holder has read the file, as one does who copies the folder.)

Source: flock(2); fcntl(2), "Advisory record locking".
"""

from __future__ import annotations

import errno
import os
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hasten.checkpoint.files import lies_at, open_lock_file
from hasten.checkpoint.storage_errors import failure
from hasten.errors import StorageFailed

_REFUSED = (errno.EACCES, errno.EAGAIN)
_NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.EINVAL, errno.ENOSYS)

_OPEN = set["Lock"]()  # that this process holds, or is about to


def _forget() -> None:
    """In a process that was forked: what its parent holds must not outlive it here."""
    for lock in _OPEN:
        os.close(lock.descriptor)
        lock.held = False
    _OPEN.clear()


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_forget)


@contextmanager
def locked(path: Path, waits: Callable[[], None] | None) -> Iterator[bool]:
    """Hold the lock that is this file.

    waits: called when another process holds it, before waiting for that process. None: do not wait; then the value is
        whether the lock is held. The file stays, unless the holder removes it: who waited then waits for its successor.
    """
    lock = taken(path, waits)
    try:
        yield lock.held
    finally:
        lock.let_go()


class Lock:
    """A file to lock, open; it is made if there is none. held: whether this process has the lock."""

    def __init__(self, path: Path) -> None:
        self.held = False
        self.descriptor = _opened(path)
        _OPEN.add(self)

    def lies_at(self, path: Path) -> bool:
        """Whether the file of this name is the one that is open. Raises StorageFailed where that cannot be seen."""
        try:
            return lies_at(self.descriptor, path)
        except OSError as error:
            raise failure("could not be looked at", path, error) from error

    def let_go(self) -> None:
        """Free the lock and close its file; in a process that was forked meanwhile it is closed already."""
        import fcntl  # not on Windows

        if self not in _OPEN:
            return
        _OPEN.discard(self)
        if self.held:
            # To close it is not enough: a process that is just about to become another program has it open too.
            with suppress(OSError):  # a file system without locks
                fcntl.flock(self.descriptor, fcntl.LOCK_UN)
        self.held = False
        os.close(self.descriptor)


def taken(
    path: Path, waits: Callable[[], None] | None = None, without_locks: Callable[[Lock], bool] | None = None
) -> Lock:
    """The lock that is this file, for let_go to end; `held` says whether this process has it now.

    waits: as in locked.
    without_locks: says, where the file system has no locks, whether this process has it; None raises there.
    Raises StorageFailed when there can be no such file, or no lock on it.
    """
    while True:
        lock = Lock(path)
        try:
            lock.held = _take(lock, path, waits, without_locks)
            if not lock.held or lock.lies_at(path):
                return lock
        except BaseException:
            lock.let_go()
            raise
        lock.let_go()  # a lock on a file that was removed meanwhile is no lock


def _take(
    lock: Lock, path: Path, waits: Callable[[], None] | None, without_locks: Callable[[Lock], bool] | None
) -> bool:
    import fcntl  # not on Windows

    try:
        fcntl.flock(lock.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno in _NO_LOCKS and without_locks is not None:
            return without_locks(lock)
        if error.errno not in _REFUSED:
            raise failure("could not be locked", path, error) from error
    else:
        return True
    if waits is None:
        return False
    waits()
    try:
        fcntl.flock(lock.descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise failure("could not be locked", path, error) from error
    return True


def _opened(path: Path) -> int:
    try:
        return open_lock_file(path)
    except StorageFailed as error:
        owner = _another_user(path) if isinstance(error.__cause__, PermissionError) else None
        if owner is None:
            raise
        what = f"is a lock of {owner}, and nobody else may open it"
        fix = f"if nothing of theirs runs there any more, remove it, or have them do so: rm {shlex.quote(str(path))}"
        raise StorageFailed(what, where=str(path), fix=fix) from error


def _another_user(path: Path) -> str | None:
    """Whose file it is, in words; None for one's own, and where there is none."""
    import pwd  # not on Windows

    try:
        owner = path.lstat().st_uid
    except OSError:
        return None
    if owner == os.geteuid():
        return None
    try:
        return f"the user {pwd.getpwuid(owner).pw_name}"
    except KeyError:  # of another machine, or of a container
        return f"the user with the number {owner}"
