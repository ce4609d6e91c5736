"""Files as they are read: from the system, or from the disk itself, past what the system remembers of them."""

from __future__ import annotations

import errno
import mmap
import os
import stat
from collections.abc import Iterator
from io import FileIO
from pathlib import Path

from hasten.checkpoint.failures import failing
from hasten.checkpoint.past_cache import go_past_cache, go_through_cache

BUFFER_BYTES = 1 << 20


def read_bytes(path: Path, most: int) -> bytes:
    """The content of a file, of a larger one the first `most` bytes. Raises StorageFailed, also for a pipe or a device:
    these may have no end."""
    with failing("could not be read", path):
        _check_regular(path)
        with open(path, "rb") as file:
            return file.read(min(most, os.fstat(file.fileno()).st_size))


def read_from_disk(path: Path) -> Iterator[memoryview]:
    """Its content as the disk has it, past the system's cache where that is possible. A piece is good until the next.
    Raises as read_bytes does."""
    buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))
    with failing("could not be read", path):
        _check_regular(path)
        with open(path, "rb", buffering=0) as file:
            go_past_cache(file.fileno())
            while size := _read_into(buffer, file):
                yield buffer[:size]


def _read_into(buffer: memoryview, file: FileIO) -> int:
    try:
        return file.readinto(buffer)
    except OSError as error:
        # Where a file ends within a block, what follows its end begins within one.
        if error.errno != errno.EINVAL or not go_through_cache(file.fileno()):
            raise
        return file.readinto(buffer)


def _check_regular(path: Path) -> None:
    if not stat.S_ISREG(os.stat(path).st_mode):
        raise OSError(errno.EINVAL, "it is no regular file")
