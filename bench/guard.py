"""A group of processes that does not outlive this one, also where this one is killed.

A process that is stopped between its turns cannot see that nobody will let it go on, nor can its own children, which
are stopped with it. So somebody else watches: a shell that reads from a pipe until its other end is closed, by whatever
way the process that held it came to its end, and then kills the group.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress


@contextmanager
def guarded(group: int) -> Iterator[None]:
    """Afterwards, and when this process ends, no process of the group is left. group: the number of its leader."""
    command = f"cat; kill -s KILL -- -{group}"  # it reads until the other end is closed
    guard = subprocess.Popen(
        ["sh", "-c", command], stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True
    )
    try:
        yield
    finally:
        guard.communicate()
        if guard.returncode < 0:  # somebody has killed the guard
            with suppress(ProcessLookupError):
                os.killpg(group, signal.SIGKILL)


def signal_group(group: int, number: signal.Signals) -> None:
    with suppress(PermissionError):  # macOS refuses where only an ended leader is left of the group
        os.killpg(group, number)
