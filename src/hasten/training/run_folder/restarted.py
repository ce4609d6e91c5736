"""Whether a launcher has started this run's processes anew: then they go on with it, and nobody has to say so.

It says so itself where it has counted. It does not count a start for which a process of another machine was the reason,
and one that takes the place of a launcher that is gone knows of none. But what lies in the folder may be another run,
which the first start was refused for. So it is the age that tells: a run of these launchers is younger than the oldest
of them, and older than processes that were started again.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from pathlib import Path

import psutil

from hasten.facts.ranks import COUNTS_STARTS, launched
from hasten.parallel.launch.process_group import from_the_leader, least, on_any
from hasten.training.run_folder.folder_names import ASKED


def started_anew(run: Callable[[], Path | None]) -> bool:
    """run: the folder that it would go on in, which the leader is asked for; None where there is none. All ranks call
    it together: one machine's launcher may know of it alone."""
    counted = on_any(launched().restarts > 0)
    launchers_began = least(_began(os.getppid()) if COUNTS_STARTS in os.environ else math.inf)
    return from_the_leader(lambda: _is_theirs(run(), launchers_began, counted))


def _is_theirs(folder: Path | None, launchers_began: float, counted: bool) -> bool:
    """Where there is nothing yet, what begins there now is their run."""
    asked = None if folder is None else folder / ASKED
    if asked is None or not asked.exists() or launchers_began == math.inf:
        return counted
    run_began = asked.stat().st_mtime
    return launchers_began <= run_began and (counted or run_began < _began(os.getpid()))


def _began(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:  # it is gone, or nobody may ask
        return math.inf
