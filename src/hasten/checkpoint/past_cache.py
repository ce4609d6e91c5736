"""Files past the system's cache: they take no memory from what a training reads, and less of a processor's time.

Only where they lie on a disk of this machine, and in whole blocks of it, at addresses where a page begins. A file that
is in memory, in layers of others, or far away is better off with the cache, and a file system may know no other way.

Source: open(2), O_DIRECT.
"""

from __future__ import annotations

import mmap
import os
import sys
from contextlib import suppress

BLOCK_BYTES = mmap.PAGESIZE


def go_past_cache(descriptor: int) -> None:
    """Let what is read and written by this descriptor go straight to the disk and back, where that is possible."""
    if sys.platform != "linux":
        return
    with suppress(OSError):
        if os.major(os.fstat(descriptor).st_dev) != 0:
            _set_straight(descriptor, True)


def go_through_cache(descriptor: int) -> bool:
    """Let it take the common way again. Whether it went straight before. Raises OSError."""
    return _set_straight(descriptor, False)


def _set_straight(descriptor: int, straight: bool) -> bool:
    if sys.platform != "linux":
        return False
    import fcntl

    flags = fcntl.fcntl(descriptor, fcntl.F_GETFL)
    wanted = flags | os.O_DIRECT if straight else flags & ~os.O_DIRECT
    fcntl.fcntl(descriptor, fcntl.F_SETFL, wanted)
    return wanted != flags
