"""Workers that are there when nothing needs them any more are killed: they heed no SIGTERM, by which Python ends them.

Python does so as the training process leaves, and then waits for them without an end. So they must be gone before.
"""

from __future__ import annotations

import os
import weakref
from collections.abc import Sequence
from typing import Any

END_SECONDS = 5.0


def kill(processes: Sequence[Any]) -> None:
    """processes: as multiprocessing has them, of which some may never have started."""
    for process in processes:
        if process.pid is not None and process.is_alive():
            process.kill()
            process.join(END_SECONDS)


def kill_with(owner: object, processes: Sequence[Any]) -> None:
    """As soon as the owner is gone, or this process leaves. It may be told before any of them has started."""
    weakref.finalize(owner, _kill_from, os.getpid(), processes)


def _kill_from(parent: int, processes: Sequence[Any]) -> None:
    if os.getpid() == parent:  # and not a process that it has forked
        kill(processes)
