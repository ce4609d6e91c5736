"""The only door to disk: every file and folder that hasten makes is made here.

A file is written whole or not at all. Its bytes go to a temporary file beside it, are forced to the disk, and only then
take the name; the folder is forced to the disk last, because the name lives there. A crash at any instant, a full disk
and a power cut leave the old content or the new, and never a mixture. A log cannot be written so: it grows by whole
lines, and a line that was cut off is closed before the next one.

Every failure is a StorageFailed that names the path, the system's reason and what to do about it.
"""

from __future__ import annotations

import errno
import os
import secrets
from contextlib import suppress
from pathlib import Path

from hasten.errors import StorageFailed


def write_atomically(path: Path, data: bytes) -> None:
    """Give the file this content. When that fails, its old content is untouched and nothing is left beside it."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    try:
        try:
            with open(temporary, "xb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # the first failure is the one to tell
                temporary.unlink(missing_ok=True)
            raise
        _force_folder(path.parent)
    except OSError as error:
        raise failure(f"could not be written: {_reason(error)}", path, error) from error


def make_folder(path: Path) -> None:
    """Make the folder and those above it; one that exists is left as it is."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise failure(f"the folder could not be made: {_reason(error)}", path, error) from error


def make_private_folder(path: Path) -> None:
    """Make the folder for its owner alone (mode 0700), and those above it; one that exists is left as it is."""
    make_folder(path.parent)
    try:
        path.mkdir(mode=0o700, exist_ok=True)
    except OSError as error:
        raise failure(f"the folder could not be made: {_reason(error)}", path, error) from error


def make_numbered_folder(parent: Path, name: str) -> Path:
    """Make the first of parent/name-1, parent/name-2, … that does not exist; two processes never get the same one."""
    make_folder(parent)
    number = 1
    while True:
        path = parent / f"{name}-{number}"
        try:
            path.mkdir()
        except FileExistsError:
            number += 1
        except OSError as error:
            raise failure(f"the folder could not be made: {_reason(error)}", path, error) from error
        else:
            return path


def remove_empty_folder(path: Path) -> None:
    """Remove the folder, unless something is in it."""
    with suppress(OSError):  # there is something in it, or it is gone: both are well
        path.rmdir()


def check_writable(folder: Path) -> None:
    """Write a small file into the folder and remove it, so that a full or read-only disk is found before the work."""
    probe = folder / f".probe.{secrets.token_hex(4)}.tmp"
    write_atomically(probe, b"hasten\n")
    try:
        probe.unlink()
    except OSError as error:
        raise failure(f"could not be removed: {_reason(error)}", probe, error) from error


def open_for_append(path: Path) -> GrowingFile:
    """A file to which whole lines are added; what is in it stays."""
    return GrowingFile(path)


class GrowingFile:
    """A log on disk. Every line is with the operating system when add_line returns, so a killed process loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        try:
            self._file = open(path, "ab", buffering=0)  # noqa: SIM115  it stays open as long as the run
            self._close_torn_line()
        except OSError as error:
            raise failure(f"could not be opened: {_reason(error)}", path, error) from error

    def add_line(self, line: bytes) -> None:
        """Add a line, without its line end. When that fails, the file keeps the lines it had."""
        try:
            start = os.fstat(self._file.fileno()).st_size
            try:
                self._write(line + b"\n")
            except OSError:
                with suppress(OSError):  # what is left is closed when the file is opened again
                    self._file.truncate(start)
                raise
        except OSError as error:
            raise failure(f"could not be written: {_reason(error)}", self._path, error) from error

    def close(self) -> None:
        self._file.close()

    def _close_torn_line(self) -> None:
        """A process that was killed, or a disk that was full, can have left a line without its end."""
        if os.fstat(self._file.fileno()).st_size == 0:
            return
        with open(self._path, "rb") as reader:
            reader.seek(-1, os.SEEK_END)
            torn = reader.read(1) != b"\n"
        if torn:
            self._write(b"\n")

    def _write(self, data: bytes) -> None:
        left = memoryview(data)
        while left:
            left = left[self._file.write(left) or 0 :]


def failure(what: str, path: Path, error: OSError) -> StorageFailed:
    """The error for a path, with what to do about the system's reason."""
    return StorageFailed(what, where=str(path), fix=_FIXES.get(error.errno or 0, "check the disk, then run it again"))


_FIXES = {
    errno.ENOSPC: "free space on this disk, or choose a folder on another one",
    errno.EDQUOT: "free space in your quota, or choose a folder on another disk",
    errno.EFBIG: "raise the limit on the size of a file: ulimit -f unlimited",
    errno.EACCES: "make the folder writable, or choose another one",
    errno.EPERM: "make the folder writable, or choose another one",
    errno.EROFS: "this disk is read-only; choose a folder on another one",
    errno.ENOENT: "make the folder first",
    errno.ENOTDIR: "a part of this path is a file; choose another path",
    errno.EEXIST: "a file has this name; choose another path",
    errno.EISDIR: "a folder has this name; choose another path",
    errno.ENAMETOOLONG: "choose a shorter name",
}


def _reason(error: OSError) -> str:
    return error.strerror or str(error)


def _force_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # Windows cannot open a folder, and orders its journal itself
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
