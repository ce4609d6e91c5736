"""The only door for reading: every file that hasten reads is opened here, and only if it is a regular file.

A named pipe, a socket or a device can lie under a file's name. Reading one would block for ever, or never come to an
end. Links are followed. All functions raise OSError, whose text says what is there.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader, FileIO
from pathlib import Path

from hasten.errors import StorageFailed

Place = str | os.PathLike[str]


def open_regular(path: Place) -> BufferedReader:
    return open(path, "rb", opener=_opened)


def open_unbuffered(path: Place) -> FileIO:
    return open(path, "rb", buffering=0, opener=_opened)


def read_regular(path: Place, most: int = -1) -> bytes:
    """The first `most` bytes; by default, all."""
    with open_regular(path) as file:
        return file.read(most)


def regular_descriptor(path: Place) -> int:
    """Open for reading. The caller closes it."""
    # Without blocking: a pipe that nobody writes to would be waited for. Regular files are read as without the flag.
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0))
    except OSError as error:
        if error.errno == errno.ENXIO:  # a socket cannot be opened
            check_regular(path)
        raise
    try:
        _check(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def check_regular(path: Place) -> None:
    """For a library that opens the file itself."""
    _check(os.stat(path), path)


def unreadable(path: Place, error: OSError) -> StorageFailed:
    """The error of a command, for an error of this module or of reading."""
    fix = "move away what is there, or check the path" if error.errno in _NO_FILE else "make the file readable"
    return StorageFailed(f"cannot be read: {error.strerror or error}", where=str(Path(path)), fix=fix)


def _opened(path: str, flags: int) -> int:
    return regular_descriptor(path)


def _check(about: os.stat_result, path: Place) -> None:
    kind = stat.S_IFMT(about.st_mode)
    if kind != stat.S_IFREG:
        number = errno.EISDIR if kind == stat.S_IFDIR else errno.ENODEV
        raise OSError(number, f"it is {_KINDS.get(kind, 'a device')}, not a file", os.fspath(path))


_NO_FILE = (errno.EISDIR, errno.ENODEV)
_KINDS = {stat.S_IFDIR: "a folder", stat.S_IFIFO: "a named pipe", stat.S_IFSOCK: "a socket"}
