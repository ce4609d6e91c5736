"""The folder for what a process needs only while it lives: gone with it; of a killed one, when the next one trains.

A process holds the lock of its folder, and what it forks does not; the system frees it when the process ends, however
that happens. So a folder that can be locked is nobody's any more.

What the processes that are noted in a folder have left in shared memory goes with it.
"""

from __future__ import annotations

import atexit
import multiprocessing
import os
import re
import socket
import tempfile
from contextlib import suppress
from pathlib import Path

from hasten.checkpoint.files import names_in, remove_folder
from hasten.checkpoint.folders.shared_segments import remove_segments_noted_in
from hasten.checkpoint.locks.file_lock import Lock, locked, taken
from hasten.checkpoint.storage_errors import failure
from hasten.errors import StorageFailed
from hasten.stop_signals import clean_before_end

_NAME = re.compile(r"hasten-[a-z0-9_]{8}")
_LOCK = ".lock"
_SOCKET, _LONGEST_SOCKET = "/listener-________", 107  # bytes; unix(7)

_mine: tuple[Path, Lock] | None = None


def process_folder() -> Path:
    """This process's own, mode 0700, made when it is first asked for. Raises StorageFailed."""
    global _mine
    if _mine is None or not _mine[0].is_dir():
        remove_what_the_dead_left()
        _mine = _made()
    return _mine[0]


def keep_sockets_here() -> None:
    """Let the processes that multiprocessing starts from now on have their sockets in this process's folder. Each would
    else make a folder for them, and leave it behind when it is killed. Raises StorageFailed, also where the path is too
    long for a socket: what workers send would not arrive."""
    if not hasattr(socket, "AF_UNIX"):  # Windows has pipes instead
        return
    folder = process_folder()
    if len(os.fsencode(folder)) + len(_SOCKET) > _LONGEST_SOCKET:
        what = "its path is too long for the sockets of loader workers"
        raise StorageFailed(what, where=str(folder.parent), fix="set TMPDIR to a folder with a short path, as /tmp is")
    told = multiprocessing.current_process()._config  # pyright: ignore[reportAttributeAccessIssue]
    if not os.path.isdir(told.get("tempdir", "")):
        told["tempdir"] = str(folder)


def _made() -> tuple[Path, Lock]:
    while True:
        try:
            folder = Path(tempfile.mkdtemp(prefix="hasten-"))
        except OSError as error:  # also where there is no place for one
            where = Path(tempfile.tempdir or os.curdir)
            raise failure("no temporary folder could be made", where, error) from error
        try:
            lock = taken(folder / _LOCK)
        except StorageFailed:
            if folder.exists():
                raise
            continue  # as below
        if lock.held:
            return folder, lock
        lock.let_go()  # another process took it for what a dead one left, before it was locked


def _remove_mine() -> None:
    global _mine
    if _mine is not None:
        (folder, lock), _mine = _mine, None
        with suppress(StorageFailed):  # the next process tries it again
            _remove(folder)
        lock.let_go()


atexit.register(_remove_mine)
clean_before_end(_remove_mine)


def remove_what_the_dead_left() -> None:
    """Remove the folders of this user's processes that ended and could not do it; what cannot be removed stays."""
    with suppress(OSError, StorageFailed):  # there is no such place, or nobody may look into it
        place = Path(tempfile.gettempdir())
        for name in names_in(place):
            if _NAME.fullmatch(name):
                _remove_if_nobodys(place / name)


def _remove_if_nobodys(folder: Path) -> None:
    with suppress(OSError, StorageFailed):  # another user's, or removed by another process meanwhile
        if folder.lstat().st_uid == os.getuid() and (folder / _LOCK).exists():
            with locked(folder / _LOCK, None) as held:
                if held:
                    _remove(folder)


def _remove(folder: Path) -> None:
    """The lock goes last: without it, nobody would try it again when a worker that outlives its training has put
    another socket there meanwhile."""
    with suppress(StorageFailed):  # another user's
        remove_segments_noted_in(folder)
    for name in names_in(folder):
        if name != _LOCK:
            remove_folder(folder / name)
    remove_folder(folder)


def _is_anothers() -> None:
    """In a process that was forked: the folder, and its lock, go with the one that made it."""
    global _mine
    _mine = None


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_is_anothers)
