"""The only door to disk: every file and folder that hasten makes is made here.

A file is written whole or not at all. Its bytes go to a temporary file beside it, are forced to the disk, and only then
take the name; the folder is forced to the disk last, because the name lives there. A crash at any instant, a full disk
and a power cut leave the old content or the new, and never a mixture. A log cannot be written so: it grows by whole
lines, and a line that was cut off is closed before the next one.
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import secrets
import stat
import sys
from contextlib import suppress
from io import FileIO
from pathlib import Path

from hasten.checkpoint.direct_io import BLOCK_BYTES, go_past_cache, go_through_cache
from hasten.checkpoint.storage_errors import failing, failure
from hasten.errors import StorageFailed

_BUFFER_BYTES = 1 << 20  # of a file that grows in pieces
_WAITING_BYTES = 1 << 24  # that the system may hold back before the disk is asked to write them
_LEFTOVER = re.compile(r"\..*\.[0-9a-f]{8}\.tmp")


def is_leftover(name: str) -> bool:
    """Whether a file of this name can only be one that write_atomically or check_writable did not come to finish."""
    return _LEFTOVER.fullmatch(name) is not None


def write_atomically(path: Path, data: bytes, like: os.stat_result | None = None) -> None:
    """Give the file this content, and mode and owner of another. When that fails, its old content is untouched and
    nothing is left beside it; only a folder that cannot be forced to the disk fails when it has the new one already."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(4)}.tmp")
    with failing("could not be written", path):
        try:
            with open(temporary, "xb", opener=None if like is None else _for_its_owner_alone) as file:
                file.write(data)
                file.flush()
                if like is not None:
                    with suppress(OSError):  # a user who is not root gives nothing away
                        os.fchown(file.fileno(), like.st_uid, like.st_gid)
                    os.fchmod(file.fileno(), like.st_mode)  # last, as writing to a file takes some bits back
                os.fsync(file.fileno())
            os.replace(temporary, path)
        except BaseException:
            with suppress(OSError):  # the first failure is the one to tell
                temporary.unlink(missing_ok=True)
            raise
        _force_folder(path.parent)


def _for_its_owner_alone(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def make_folder(path: Path) -> None:
    """Make the folder and those above it, each forced to the disk; one that exists is left as it is."""
    with failing("the folder could not be made", path):
        missing = [each for each in (path, *path.parents) if not each.is_dir()]
        if missing:
            path.mkdir(parents=True, exist_ok=True)
        for each in missing:
            _force_folder(each.parent)


def make_building_folder(path: Path) -> None:
    """Make a folder that need not outlive a power loss: something is built in it before rename_folder gives it its name
    and forces it to the disk, or it is no more than a mark."""
    with failing("the folder could not be made", path):
        path.mkdir()


def make_private_folder(path: Path) -> None:
    """Make the folder for its owner alone (mode 0700), and those above it; one that exists is left as it is."""
    make_folder(path.parent)
    with failing("the folder could not be made", path):
        path.mkdir(mode=0o700, exist_ok=True)


def make_numbered_folder(parent: Path, name: str) -> Path:
    """Make the first of parent/name-1, parent/name-2, … that does not exist; two processes never get the same one."""
    make_folder(parent)
    number = 1
    while True:
        path = parent / f"{name}-{number}"
        try:
            path.mkdir()
            _force_folder(parent)
        except FileExistsError:
            number += 1
        except OSError as error:
            raise failure("the folder could not be made", path, error) from error
        else:
            return path


def remove_empty_folder(path: Path) -> None:
    """Remove the folder, unless something is in it."""
    with suppress(OSError):  # there is something in it, or it is gone: both are well
        path.rmdir()


def remove_file(path: Path) -> None:
    """Remove the file. What is gone already is well."""
    with failing("could not be removed", path):
        path.unlink(missing_ok=True)


def check_writable(folder: Path) -> None:
    """Write a small file into the folder and remove it, so that a full or read-only disk is found before the work."""
    probe = folder / f".probe.{secrets.token_hex(4)}.tmp"
    try:
        write_atomically(probe, b"hasten\n")
        remove_file(probe)
    except StorageFailed as error:  # nobody has asked for that file
        raise StorageFailed(f"nothing can be written here: {error.what}", where=str(folder), fix=error.fix) from error


def open_for_append(path: Path) -> GrowingFile:
    """A file to which whole lines are added; what is in it stays."""
    return GrowingFile(path)


class GrowingFile:
    """A log on disk. Every line is with the operating system when add_line returns, so a killed process loses none."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._torn_at: int | None = None  # where a line begins that was written in part, and could not be taken back
        with failing("could not be opened", path):
            self._file = _opened_log(path)
            self._close_torn_line()

    def add_line(self, line: bytes) -> None:
        """Add a line, without its line end. When that fails, the file keeps the lines it had."""
        with failing("could not be written", self._path):
            if self._torn_at is not None:
                self._file.truncate(self._torn_at)
                self._torn_at = None
            start = self.size()
            try:
                self._write(line + b"\n")
            except OSError:
                self._torn_at = start
                with suppress(OSError):  # it is tried again with the next line
                    self._file.truncate(start)
                    self._torn_at = None
                raise

    def size(self) -> int:
        """In bytes; cut_file brings the file back to this place."""
        return os.fstat(self._file.fileno()).st_size

    def force(self) -> None:
        """To the disk, as far as it was written; may be called from another thread."""
        with failing("could not be written", self._path):
            os.fsync(self._file.fileno())

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


def _opened_log(path: Path) -> FileIO:
    file = open(path, "ab", buffering=0, opener=_never_by_a_link)  # noqa: SIM115  it stays open as long as the run
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "it is no regular file")
    return file


def _never_by_a_link(path: str, flags: int) -> int:
    """A link in a folder of somebody else's could lead to any file of this user's."""
    return os.open(path, flags | getattr(os, "O_NOFOLLOW", 0), 0o666)


def cut_file(path: Path, length: int) -> int:
    """Take away what lies behind the first `length` bytes; how many of these are missing, 0 where all are there."""
    with failing("could not be cut", path), _opened_log(path) as file:
        found = os.fstat(file.fileno())
        if found.st_size > length or found.st_nlink > 1:
            with open(path, "rb") as reader:
                content = reader.read(length)
            write_atomically(path, content)  # by another name, in a copy made of links, the old file keeps all of it
    return max(length - found.st_size, 0)


def names_in(folder: Path) -> list[str]:
    """What lies in the folder, sorted; nothing where there is none. Raises StorageFailed."""
    try:
        return sorted(os.listdir(folder))
    except FileNotFoundError:
        return []
    except OSError as error:
        raise failure("could not be read", folder, error) from error


class NewFile:
    """A large file that grows in pieces inside a folder of its own. After finish() it is whole and on the disk; before
    that, the folder must not take its final name.

    The disk is asked to begin as soon as there is something to write: left alone, the system lets it rest until
    finish() waits for it.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        with failing("could not be made", path):
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115  it stays open as long as the work
        self._buffer, self._filled = mmap.mmap(-1, _BUFFER_BYTES), 0  # it begins where a page does
        self._written_bytes = 0
        self._waiting_bytes = 0  # of these, not known to the disk

    @classmethod
    def past_the_cache(cls, path: Path) -> NewFile:
        """One that nobody reads soon."""
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
        """Close the file as it is; what was written of it may be lost."""
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
        """Let the disk write what the system has, without waiting for it: what Linux does with changed pages of which
        it is told that nobody will read them soon."""
        if sys.platform == "linux":
            start = self._written_bytes - self._waiting_bytes
            with suppress(OSError):  # a file system may take no advice, and then finish() waits longer
                os.posix_fadvise(self._file.fileno(), start, self._waiting_bytes, os.POSIX_FADV_DONTNEED)
        self._waiting_bytes = 0


def rename_folder(source: Path, target: Path) -> None:
    """Give a finished folder its name, which nothing may have. Its files are forced to the disk already. When that
    fails, the folder has its old name."""
    with failing(f"could not be renamed to {target.name}", source):
        _force_folder(source)
        _rename(source, target)


def set_aside(source: Path, target: Path) -> None:
    """Take its name from what is to be removed, so that half of it is never found under that name. When that fails, it
    has its old name."""
    with failing("could not be removed", source):
        _rename(source, target)


def _rename(source: Path, target: Path) -> None:
    os.rename(source, target)
    try:
        _force_folder(target.parent)
    except OSError:
        with suppress(OSError):  # the first failure is the one to tell
            os.rename(target, source)  # a name that may be gone tomorrow must not be relied on today
        raise


def name_new_file(file: Path, path: Path) -> None:
    """Give a finished file one more name, which nothing may have; else a FileExistsError is the cause of the failure,
    and all stays as it is."""
    with failing("could not be written", path):
        try:
            os.link(file, path)
        except OSError as error:
            if error.errno not in (errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                raise
            open(path, "xb").close()  # no links here: then the other name goes, and only this empty file is replaced
            os.replace(file, path)
        _force_folder(path.parent)


def remove_folder(path: Path) -> None:
    """Remove the folder with all that is in it; what a link leads to stays, also where the path itself is one. What is
    gone already, or another process removes meanwhile, is well. A file is removed too."""
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


def open_lock_file(path: Path) -> int:
    """A descriptor of a file to lock, which is made if there is none; close it with os.close."""
    with failing("could not be opened", path):
        # Mode 0600: whoever could open it could hold everybody up.
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def fill_lock_file(descriptor: int, path: Path, content: bytes) -> None:
    """Let the file say this, for who finds it locked; it is forced to no disk."""
    with failing("could not be written", path):
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, content, 0)


def lies_at(descriptor: int, path: Path) -> bool:
    """Whether the file that is open here is the one of this name."""
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _force_folder(folder: Path) -> None:
    if os.name == "nt":
        return  # Windows cannot open a folder, and orders its journal itself
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
