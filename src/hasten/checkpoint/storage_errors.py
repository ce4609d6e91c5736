"""System errors of files and folders as StorageFailed: the path, the system's reason, and what to do about it."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hasten.errors import StorageFailed


@contextmanager
def failing(what: str, path: Path) -> Iterator[None]:
    """Raise an OSError of the block as a StorageFailed of this path."""
    try:
        yield
    except OSError as error:
        raise failure(what, path, error) from error


def failure(what: str, path: Path, error: OSError) -> StorageFailed:
    """The error for a path: what could not be done, the system's reason, and what to do about it."""
    fix = _FIXES.get(error.errno or 0, "check the disk, then run it again")
    return StorageFailed(f"{what}: {error.strerror or error}", where=str(path), fix=fix)


_FIXES = {
    errno.ENOSPC: "free space on this disk, or choose a folder on another one",
    errno.EDQUOT: "free space in your quota, or choose a folder on another disk",
    errno.EFBIG: "raise the limit on the size of a file: ulimit -f unlimited",
    errno.EACCES: "let this user read and write there, or choose another folder",
    errno.EPERM: "let this user read and write there, or choose another folder",
    errno.EROFS: "this disk is read-only; choose a folder on another one",
    errno.ENOENT: "create the folder first",
    errno.ENOTDIR: "a part of this path is a file; choose another path",
    errno.EEXIST: "a file has this name; choose another path",
    errno.EISDIR: "a folder has this name; choose another path",
    errno.ENODEV: "move away what has this name, or choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
}
