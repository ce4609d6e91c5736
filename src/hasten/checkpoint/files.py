"""The only door to disk: every file and folder that hasten makes is made here. filelock makes lock files.

A file is written whole or not at all. Its bytes go to a temporary file beside it and are forced to the disk; then the
file is renamed, and the folder is forced to the disk, because the name lives there. A crash at any instant, a full disk
and a power cut leave the old content or the new, never a mixture. A log is different: it grows by whole lines, and a
line that was cut off is ended before the next one.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import secrets
import shutil
import sys
from contextlib import suppress
from io import BufferedWriter, FileIO
from pathlib import Path

from hasten.checkpoint.direct_io import BLOCK_BYTES, go_past_cache, go_through_cache
from hasten.checkpoint.storage_errors import failing, failure
from hasten.errors import StorageFailed
from hasten.regular_files import check_regular, open_regular

_BUFFER_BYTES = 1 << 20  # of a NewFile
_WAITING_BYTES = 1 << 24  # that the system may hold back before the disk is asked to write them
_LEFTOVER = re.compile(r"\..*\.[0-9a-f]{8}\.tmp")


def is_leftover(name: str) -> bool:
    """Whether only an unfinished write of this module can have this file name."""
    return _LEFTOVER.fullmatch(name) is not None


# ── Small files, written whole ──────────────────────────────────────────────────────────────────────────────────────


def write_atomically(path: Path, data: bytes, like: os.stat_result | None = None) -> None:
    """Replace the file's content. like: the file whose mode and owner it gets.

    Raises StorageFailed. The old content is untouched then and nothing is left beside it, unless only the folder could
    not be forced to the disk.
    """
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with failing("could not be written", path):
        try:
            with open(temporary, "xb", opener=None if like is None else _for_its_owner_alone) as file:
                file.write(data)
                file.flush()
                if like is not None:
                    with suppress(OSError):  # only root can give a file away
                        os.fchown(file.fileno(), like.st_uid, like.st_gid)
                    os.fchmod(file.fileno(), like.st_mode)  # last, as a write clears some bits
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # report the first failure
                temporary.unlink(missing_ok=True)
            raise
        _force_folder(path.parent)


def fill_lock_file(path: Path, content: bytes) -> None:
    """Write into a lock file in place, so that it stays the file that is locked. It is not forced to the disk."""
    with failing("could not be written", path):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, content, 0)
        finally:
            os.close(descriptor)


def check_writable(folder: Path) -> None:
    """Write a small file into the folder and remove it, so that a full or read-only disk is found before the work."""
    probe = folder / f".probe.{secrets.token_hex(4)}.tmp"
    try:
        write_atomically(probe, b"hasten\n")
        remove_file(probe)
    except StorageFailed as error:  # name the folder, not the probe
        raise StorageFailed(f"the folder is not writable: {error.what}", where=str(folder), fix=error.fix) from error


def remove_file(path: Path) -> None:
    """Remove the file, if it is there. Raises StorageFailed."""
    with failing("could not be removed", path):
        path.unlink(missing_ok=True)


def names_in(folder: Path) -> list[str]:
    """The names in the folder, sorted; none where there is no folder. Raises StorageFailed."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise failure("could not be read", folder, error) from error


def _for_its_owner_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


# ── Logs ────────────────────────────────────────────────────────────────────────────────────────────────────────────


class GrowingFile:
    """A log on disk. The operating system has each line when add_line returns, so a killed process loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with failing("could not be opened", path):
            self._file = _opened_log(path)
            if self.size() and not _ends_a_line(path):  # a killed process, or a full disk, has cut it off
                self._file.write(b"\n")

    def add_line(self, line: bytes) -> None:
        """Add a line, given without its line end. Raises StorageFailed; the file keeps the lines it had."""
        with failing("could not be written", self._path):
            start, left = self.size(), memoryview(line + b"\n")
            try:
                while left:
                    left = left[self._file.write(left) or 0 :]
            except OSError:
                self._file.truncate(start)
                raise

    def size(self) -> int:
        """In bytes; cut_file cuts the file back to it."""
        return os.fstat(self._file.fileno()).st_size

    def force(self) -> None:
        """Force what was written to the disk. Any thread may call it."""
        with failing("could not be written", self._path):
            os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def cut_file(path: Path, length: int) -> int:
    """Cut the file to its first `length` bytes; how many of these are missing, 0 where all are there."""
    with failing("could not be cut", path), _opened_log(path) as file:
        found = os.fstat(file.fileno()).st_size
        if found > length:
            file.truncate(length)
    return max(length - found, 0)


def _opened_log(path: Path) -> FileIO:
    return open(path, "ab", buffering=0, opener=_never_by_a_link)  # it stays open as long as the run


def _never_by_a_link(path: str, flags: int) -> int:
    """A link in another user's folder could lead to any file of this user. A named pipe would be waited for."""
    with suppress(FileNotFoundError):
        check_regular(path)
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0), 0o666)


def _ends_a_line(path: Path) -> bool:
    with open_regular(path) as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) == b"\n"


# ── Large files ─────────────────────────────────────────────────────────────────────────────────────────────────────


class NewFile:
    """A large file that is written in pieces, in a folder that has not its final name yet.

    After finish() the file is whole and on the disk. The disk is asked to begin early: left alone, the system waits
    until finish() waits for it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with failing("could not be created", path):
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115  it stays open as long as the work
        self._buffer, self._filled = mmap.mmap(-1, _BUFFER_BYTES), 0  # page-aligned, as O_DIRECT needs
        self._written_bytes = 0
        self._waiting_bytes = 0  # of these, not given to the disk yet

    @classmethod
    def past_the_cache(cls, path: Path) -> NewFile:
        """A file that nobody reads soon."""
        file = cls(path)
        go_past_cache(file._file.fileno())
        return file

    def write(self, data: bytes | memoryview) -> None:
        left = memoryview(data).cast("B")
        while left:
            part = left[: _BUFFER_BYTES - self._filled]
            self._buffer[self._filled : self._filled + len(part)] = part
            self._filled, left = self._filled + len(part), left[len(part) :]
            if self._filled == _BUFFER_BYTES:
                self._empty_buffer()

    def finish(self) -> None:
        """Force everything to the disk and close the file."""
        self._empty_buffer()
        with failing("could not be written", self._path):
            os.fsync(self._file.fileno())
            self._file.close()

    def abandon(self) -> None:
        """Close the file, whether it is finished or not."""
        self._file.close()

    def _empty_buffer(self) -> None:
        left, descriptor = memoryview(self._buffer)[: self._filled], self._file.fileno()
        with failing("could not be written", self._path):
            if len(left) % BLOCK_BYTES:
                go_through_cache(descriptor)
            while left:
                try:
                    left = left[self._file.write(left) or 0 :]
                except OSError as error:
                    if error.errno != errno.EINVAL or not go_through_cache(descriptor):
                        raise
        self._written_bytes += self._filled
        self._waiting_bytes += self._filled
        self._filled = 0
        if self._waiting_bytes >= _WAITING_BYTES:
            self._begin()

    def _begin(self) -> None:
        """Let the disk write, without waiting: Linux does so for changed pages that are declared as not needed."""
        if sys.platform == "linux":
            start = self._written_bytes - self._waiting_bytes
            with suppress(OSError):  # some file systems take no advice
                os.posix_fadvise(self._file.fileno(), start, self._waiting_bytes, os.POSIX_FADV_DONTNEED)
        self._waiting_bytes = 0


# ── Folders ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def make_folder(path: Path) -> None:
    """Make the folder and its parents, each forced to the disk, if they are missing. Raises StorageFailed."""
    with failing("the folder could not be created", path):
        missing = [each for each in (path, *path.parents) if not each.is_dir()]
        if missing:
            path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            _force_folder(each.parent)


def make_building_folder(path: Path) -> None:
    """Make a folder that need not survive a power loss: rename_folder forces it to the disk when it is finished."""
    with failing("the folder could not be created", path):
        path.mkdir()


def make_private_folder(path: Path) -> None:
    """Make the folder with mode 0700, and its parents, if they are missing. Raises StorageFailed."""
    make_folder(path.parent)
    with failing("the folder could not be created", path):
        path.mkdir(mode=0o700, exist_ok=True)


def make_numbered_folder(parent: Path, name: str) -> Path:
    """Make the first of parent/name-1, parent/name-2, … that does not exist; two processes never get the same one."""
    make_folder(parent)
    number = 1
    while True:
        path = parent / f"{name}-{number}"
        with failing("the folder could not be created", path):
            try:
                path.mkdir()
            except FileExistsError:
                number += 1
                continue
            _force_folder(parent)
            return path


def rename_folder(source: Path, target: Path) -> None:
    """Give a finished folder its name, which nothing may have. Its files are forced to the disk already.

    Raises StorageFailed. The folder is whole under either name then; a power loss may undo the renaming.
    """
    with failing(f"could not be renamed to {target.name}", source):
        _force_folder(source)
        _rename(source, target)


def set_aside(source: Path, target: Path) -> None:
    """Rename what is to be removed, so that half of it is never found under its name. Raises StorageFailed."""
    with failing("could not be removed", source):
        _rename(source, target)


def remove_folder(path: Path) -> None:
    """Remove the folder with its content, or a file. Links are removed, not followed; what is gone already is skipped.

    Raises StorageFailed.
    """
    try:
        if path.is_symlink() or not path.is_dir():
            path.unlink()
            return
        for item in [*path.iterdir()]:
            remove_folder(item)
        path.rmdir()
    except FileNotFoundError:
        return
    except OSError as error:
        raise failure("could not be removed", path, error) from error


def remove_empty_folder(path: Path) -> None:
    """Remove the folder, unless something is in it."""
    with suppress(OSError):  # something is in it, or it is gone
        path.rmdir()


def _rename(source: Path, target: Path) -> None:
    os.rename(source, target)
    _force_folder(target.parent)


def _force_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # Windows cannot open a folder, and its journal keeps the order
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


# ── A copy of a user's folder for one trial, which nothing reads afterwards ─────────────────────────────────────────


def copy_file(source: Path, target: Path) -> None:
    """Raises StorageFailed."""
    with failing("could not be copied", source):
        shutil.copy2(source, target)


def move(source: Path, target: Path) -> None:
    """Into a folder that is made where it is missing. Raises StorageFailed."""
    with failing("could not be moved", source):
        target.parent.mkdir(parents=True, exist_ok=True)
        os.rename(source, target)


def link_to(target: Path, link: Path) -> None:
    """Raises StorageFailed."""
    with failing("could not be linked", link):
        link.symlink_to(target)


def replace_file(path: Path, data: bytes) -> None:
    """In place, without forcing it to the disk. Raises StorageFailed."""
    with failing("could not be written", path):
        path.unlink(missing_ok=True)
        path.write_bytes(data)


def replace_link(link: Path, *, keep: bool) -> None:
    """By a copy of the file that it leads to, or by nothing."""
    target = link.resolve()
    link.unlink()
    if keep and target.is_file():
        shutil.copy2(target, link)


def replace_folder_link(link: Path) -> None:
    """By a folder of links to all that is in the one that it leads to."""
    target = link.resolve()
    link.unlink()
    link.mkdir()
    for name in os.listdir(target):
        (link / name).symlink_to(target / name)


def open_for_library(path: str | os.PathLike[str]) -> BufferedWriter:
    """For a library that writes the file itself, and would open it in C."""
    return open(path, "wb")
