"""Whether a launcher has started this run's processes anew: then they go on with it, and nobody has to say so.

What lies in the folder may be another run, which the first start was refused for. The launcher is older than a run of
its own, and younger than any other.
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import psutil

from hasten.facts.launched import launched
from hasten.parallel.join import from_the_leader, on_any
from hasten.training.run_names import ASKED


def started_anew(folder: Path | None) -> bool:
    """folder: of the run; None is the newest of its job. All ranks call it together: one machine's launcher may know of
    it alone."""
    if not on_any(launched().restarts > 0):
        return False
    return from_the_leader(lambda: folder is None or _began_since(_launcher_began(), folder))


def _launcher_began() -> float:
    with suppress(psutil.Error):  # it is gone, or nobody may ask
        return psutil.Process(os.getppid()).create_time()
    return 0.0


def _began_since(seconds: float, folder: Path) -> bool:
    """Also where there is nothing yet: what begins there then is this run."""
    asked = folder / ASKED
    return not asked.exists() or asked.stat().st_mtime >= seconds
