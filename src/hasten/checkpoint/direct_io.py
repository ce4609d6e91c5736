"""Reading files, from the page cache or from the disk itself.

O_DIRECT goes past the page cache, so a large file neither evicts what training reads nor costs a copy. It is used only
on a local disk and in whole pages; a file system that refuses it is read and written through the cache.
records/failures.md, "Checkpoints through the system's cache", has what it saves.

Source: open(2), O_DIRECT.
"""

from __future__ import annotations

import errno
import mmap
import os
import sys
from collections.abc import Iterator
from contextlib import suppress
from io import FileIO
from pathlib import Path

from hasten.checkpoint.storage_errors import failing
from hasten.regular_files import open_regular, open_unbuffered

BLOCK_BYTES = mmap.PAGESIZE
BUFFER_BYTES = 1 << 20


def go_past_cache(descriptor: int) -> None:
    """Use O_DIRECT on this descriptor, where that is possible."""
    if sys.platform != "linux":
        return
    with suppress(OSError):
        if os.major(os.fstat(descriptor).st_dev) != 0:  # 0: in memory, layered or remote, which the cache serves better
            _set_direct(descriptor, os.O_DIRECT)


def go_through_cache(descriptor: int) -> bool:
    """Stop using O_DIRECT; whether it was in use. Raises OSError."""
    return sys.platform == "linux" and _set_direct(descriptor, 0)


def _set_direct(descriptor: int, direct: int) -> bool:
    import fcntl  # not on Windows

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    wanted = flags & ~os.O_DIRECT | direct
    fcntl.fcntl(descriptor, fcntl.F_SETFL, wanted)
    return wanted != flags


def read_bytes(path: Path, most: int) -> bytes:
    """The first `most` bytes of a file. Raises StorageFailed, also for a pipe or a device, which may have no end."""
    with failing("could not be read", path), open_regular(path) as file:
        return file.read(min(most, os.fstat(file.fileno()).st_size))


def read_from_disk(path: Path) -> Iterator[memoryview]:
    """The file in pieces, past the page cache where possible. A piece is valid until the next one is read.

    Raises as read_bytes does.
    """
    buffer = memoryview(mmap.mmap(-1, BUFFER_BYTES))
    with failing("could not be read", path), open_unbuffered(path) as file:
        go_past_cache(file.fileno())
        while size := _read_into(buffer, file):
            yield buffer[:size]


def _read_into(buffer: memoryview, file: FileIO) -> int:
    try:
        return file.readinto(buffer)
    except OSError as error:
        # O_DIRECT cannot read on from the end of a file that ends inside a block.
        if error.errno != errno.EINVAL or not go_through_cache(file.fileno()):
            raise
        return file.readinto(buffer)
