"""Whether a launcher has restarted this run's processes, which then resume without --resume.

A launcher counts only the restarts that its own machine caused. So ages decide too: a run of these launchers is younger
than the oldest of them, and older than processes that were restarted.
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


def was_restarted(run: Callable[[], Path | None]) -> bool:
    """Whether to resume. All ranks call it together, as one machine's launcher alone may know.

    run: the folder to resume in, called on the leader; None where there is none.
    """
    counted = on_any(launched().restarts > 0)
    launchers_began = least(_began(os.getppid()) if COUNTS_STARTS in os.environ else math.inf)
    return from_the_leader(lambda: _is_of_launchers(run(), launchers_began, counted))


def _is_of_launchers(folder: Path | None, launchers_began: float, counted: bool) -> bool:
    """Whether the launchers of these processes began the run in the folder. Without a run, only the count decides."""
    asked = None if folder is None else folder / ASKED
    if asked is None or not asked.exists() or launchers_began == math.inf:
        return counted
    run_began = asked.stat().st_mtime
    return launchers_began <= run_began and (counted or run_began < _began(os.getpid()))


def _began(pid: int) -> float:
    try:
        return psutil.Process(pid).create_time()
    except psutil.Error:  # it has ended, or may not be examined
        return math.inf
