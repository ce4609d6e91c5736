"""Loaded by the fork server of a search: when the search ends, by whatever way, the server kills all trials and ends.

Otherwise a search that was killed leaves its stopped trials behind: their processes hold the fork server's pipe open,
and what they have started, such as loader workers, dies with nobody. So it does where a signal to the whole process
group, such as that of timeout(1) or of a batch system, reaches the server too.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

from hasten.tuning.trials.process_tree import descendants, die_with, kill_all

KILL_SECONDS = 10.0
ENDS = (signal.SIGHUP, signal.SIGTERM)


def _end(number: int, frame: FrameType | None) -> None:
    for pid in descendants(os.getpid()):
        kill_all(pid, KILL_SECONDS)
    os._exit(0)


for number in ENDS:
    signal.signal(number, _end)
die_with(os.getppid(), signal.SIGHUP)
