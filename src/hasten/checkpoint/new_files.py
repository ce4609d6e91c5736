"""Files that take a name which nothing has: what has it already is never replaced, even if it came a moment before.

The bytes go to a hidden file beside it. When they are on the disk it gets the name as a second one, which the system
refuses where something has it, and loses its own.

Who writes shares a lock of the folder, which the system frees when a process ends, however that happens. So who gets it
alone knows that nobody writes, and removes what a killed process left of a file of the same name. Where there are no
such locks, as in some network file systems, that stays.

Source: link(2), flock(2).
"""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hasten.checkpoint.files import NewFile, name_new_file, names_in, remove_file
from hasten.checkpoint.storage_errors import failing
from hasten.errors import StorageFailed


def write_new(path: Path, data: bytes) -> bool:
    """Whether the file was written, and is on the disk; False where something has its name, which stays as it is.

    Raises StorageFailed; nothing is left then, unless it is only the folder that cannot be forced to the disk.
    """
    hidden = path.with_name(f".{path.name}.new.{secrets.token_hex(4)}.tmp")
    try:
        with _shared(path):
            try:
                _write(hidden, data)
                return _named(hidden, path)
            finally:
                with suppress(StorageFailed):  # the first failure is the one to tell
                    remove_file(hidden)
    except StorageFailed as error:
        raise StorageFailed(error.what, where=str(path), fix=error.fix) from error


def _write(path: Path, data: bytes) -> None:
    file = NewFile(path)
    try:
        file.write(data)
        file.finish()
    finally:
        file.abandon()


def _named(hidden: Path, path: Path) -> bool:
    try:
        name_new_file(hidden, path)
    except StorageFailed as error:
        if isinstance(error.__cause__, FileExistsError):
            return False
        raise
    return True


@contextmanager
def _shared(path: Path) -> Iterator[None]:
    """Share the lock of the file's folder, after it was cleaned if nobody else had it. Another program may hold the
    lock, as flock(1) does for a whole command: so it is never waited for."""
    if os.name == "nt":  # Windows can open no folder
        yield
        return
    import fcntl

    with failing("could not be opened", path.parent):
        descriptor = os.open(path.parent, os.O_RDONLY)
    try:
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            _remove_leftovers(path)
        with suppress(OSError):
            fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        yield
    finally:
        os.close(descriptor)


def _remove_leftovers(path: Path) -> None:
    leftover = re.compile(rf"\.{re.escape(path.name)}\.new\.[0-9a-f]{{8}}\.tmp")
    for name in filter(leftover.fullmatch, names_in(path.parent)):
        with suppress(StorageFailed):  # another user's
            remove_file(path.parent / name)
