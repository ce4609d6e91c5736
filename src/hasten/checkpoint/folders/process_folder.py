"""A temporary folder for one process: removed at its end; after a kill, by the next process that trains.

The process holds a lock file in its folder, which the system frees when it ends. So a folder whose lock can be taken
belongs to no living process. Shared memory of processes that are noted in a folder is removed with it.
"""

from __future__ import annotations

import atexit
import os
import re
import tempfile
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.checkpoint.files import names_in, remove_folder
from hasten.checkpoint.folders.shared_segments import remove_segments_noted_in
from hasten.checkpoint.locks.file_lock import file_lock, locked, taken
from hasten.checkpoint.storage_errors import failing
from hasten.errors import StorageFailed
from hasten.stop_signals import clean_before_end

if TYPE_CHECKING:
    from filelock import BaseFileLock

_NAME = re.compile(r"hasten-[a-z0-9_]{8}")
_LOCK = ".lock"
_AFTER_ITS_FILES = -200  # multiprocessing removes its temporary folder at -100

_mine: tuple[Path, BaseFileLock] | None = None


def process_folder() -> Path:
    """The folder of this process, mode 0700, made at the first call. Raises StorageFailed."""
    global _mine
    if _mine is None or not _mine[0].is_dir():
        remove_what_the_dead_left()
        _mine = _made()
    return _mine[0]


def _made() -> tuple[Path, BaseFileLock]:
    while True:
        with failing("no temporary folder could be made", Path(tempfile.tempdir or os.curdir)):
            folder = Path(tempfile.mkdtemp(prefix="hasten-"))
        lock = file_lock(folder / _LOCK)
        if taken(lock):
            return folder, lock
        # Another process has locked the new file before this one, and removes the folder as one of the dead.


@cache
def remove_after_multiprocessing() -> None:
    """At the end of this process: multiprocessing, whose temporary files are in the folder, removes them first, and
    shows a traceback where they are gone."""
    from multiprocessing.util import Finalize

    atexit.unregister(_at_the_end)
    Finalize(None, _at_the_end, exitpriority=_AFTER_ITS_FILES)


def remove_what_the_dead_left() -> None:
    """Remove folders of this user's processes that were killed. A folder that cannot be removed stays."""
    with suppress(OSError, StorageFailed):  # there is no such place, or nobody may look into it
        place = Path(tempfile.gettempdir())
        for name in names_in(place):
            if _NAME.fullmatch(name):
                _remove_if_free(place / name)


def _remove_if_free(folder: Path) -> None:
    with suppress(OSError, StorageFailed):  # another user's, or removed by another process meanwhile
        if folder.lstat().st_uid == os.getuid() and (folder / _LOCK).exists():
            with locked(folder / _LOCK, None) as held:
                if held:
                    _remove(folder)


def _remove(folder: Path) -> None:
    """Remove the lock file last: without it, nobody would try again where a worker has just added another file."""
    with suppress(StorageFailed):  # another user's
        remove_segments_noted_in(folder)
    for name in names_in(folder):
        if name != _LOCK:
            remove_folder(folder / name)
    remove_folder(folder)


def _remove_mine() -> None:
    global _mine
    if _mine is not None:
        (folder, lock), _mine = _mine, None
        with suppress(StorageFailed):  # the next process tries again
            _remove(folder)
        lock.release()


def _at_the_end() -> None:
    """What forked processes left is removed too: they end without this, and trials of a search are killed."""
    if _mine is not None:
        _remove_mine()
        remove_what_the_dead_left()


def _reset_in_child() -> None:
    """A forked child has no folder yet: its parent's is removed with the parent."""
    global _mine
    _mine = None


atexit.register(_at_the_end)
clean_before_end(_remove_mine)
if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_reset_in_child)
