"""A lock that is a file: of all processes of this machine that ask for it, one has it.

Source: flock(2).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from hasten.checkpoint.files import failure, lies_at, open_lock_file


@contextmanager
def locked(path: Path, waits: Callable[[], None] | None) -> Iterator[bool]:
    """Hold the lock that is this file. The system frees it when its holder ends, however that happens, and all that
    the holder forked while it held it.

    waits: called when another process holds it, before waiting for that process. None: do not wait; then the value is
        whether the lock is held. The file stays, unless the holder removes it: who waited then waits for its successor.
    """
    descriptor, held = opened_and_taken(path, waits)
    try:
        yield held
    finally:
        if held:
            _free(descriptor)
        os.close(descriptor)


def opened_and_taken(path: Path, waits: Callable[[], None] | None) -> tuple[int, bool]:
    """The same as two values: a descriptor to close, and whether it holds the lock. What is forked holds it too, until
    it closes its copy."""
    while True:
        descriptor = open_lock_file(path)
        try:
            held = _taken(descriptor, path, waits)
            there = not held or lies_at(descriptor, path)
        except BaseException:
            os.close(descriptor)
            raise
        if there:
            return descriptor, held
        os.close(descriptor)  # a lock on a file that was removed meanwhile is no lock


def _taken(descriptor: int, path: Path, waits: Callable[[], None] | None) -> bool:
    import fcntl  # not on Windows

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        if waits is None:
            return False
    except OSError as error:
        raise failure("could not be locked", path, error) from error
    else:
        return True
    waits()
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
    except OSError as error:
        raise failure("could not be locked", path, error) from error
    return True


def _free(descriptor: int) -> None:
    """To close it is not enough: a process that was forked meanwhile has it open too, and would hold the lock on."""
    import fcntl  # not on Windows

    fcntl.flock(descriptor, fcntl.LOCK_UN)
