"""In a worker that began as a copy of the training process: files that were open already, with a position of their own.

A file that is open when a process is copied has one position for both: what one reads moves the other, which then gets
bytes from somewhere else, without an error. A data set that opens its file with the first sample brings this about as
soon as one sample was read before the workers start: by a script that looks at it, by a trial in the same process, or
to build a cache of one part of it while another is read without one.

So every regular file that is open for reading alone is opened once more by the worker, at the same position, in place
of the shared one. Only Linux lets a process open again what it has open, /proc/self/fd; elsewhere workers do not begin
as copies. What was given up: files that are open for writing too stay shared, because a log that two processes append
to must be; and a file that one process has open twice by os.dup gets two positions.

Source: https://man7.org/linux/man-pages/man2/fork.2.html, on open file descriptions
"""

from __future__ import annotations

import os
import stat
from contextlib import suppress
from pathlib import Path

_OPEN_FILES = Path("/proc/self/fd")


def take_own_positions() -> None:
    """Leaves a file shared that may not be opened again."""
    if not _OPEN_FILES.is_dir():
        return
    for name in os.listdir(_OPEN_FILES):
        with suppress(OSError):  # the directory that was listed is closed, or the file may not be opened by this user
            _take_own(int(name))


def _take_own(shared: int) -> None:
    import fcntl  # not on Windows

    how = fcntl.fcntl(shared, fcntl.F_GETFL)
    if how & os.O_ACCMODE != os.O_RDONLY or not stat.S_ISREG(os.fstat(shared).st_mode):
        return
    own = os.open(_OPEN_FILES / str(shared), os.O_RDONLY | os.O_CLOEXEC)
    try:
        fcntl.fcntl(own, fcntl.F_SETFL, how)
        os.lseek(own, os.lseek(shared, 0, os.SEEK_CUR), os.SEEK_SET)
        os.dup2(own, shared, inheritable=os.get_inheritable(shared))
    finally:
        os.close(own)
