"""What a process of `hasten train` takes around its training, whatever the plan.

Arms are copies of a process that has loaded torch and hasten, and save nothing, so they pay for neither. Both are
measured once for each search: a new interpreter imports what `hasten train` and the job's file import, and ends; and an
arm saves a checkpoint, as the run does at its end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from hasten.doctor.profiling.checkpoint_cost import checkpoint_cost
from hasten.errors import HastenError
from hasten.training.run import Run

LONGEST_SECONDS = 120.0  # of importing; a job whose libraries take longer has its start left out
_OURS = ("hasten.cli", "hasten.entry", "torch._dynamo")  # torch imports the last one with the first optimizer


def import_seconds(libraries: Sequence[str]) -> float:
    """Of a new interpreter with these libraries, from its start to its end. Where they cannot be imported, of one
    without them: the job's own file says what is wrong with them."""
    program = f"import {', '.join((*_OURS, *libraries))}"
    began = time.perf_counter()
    try:
        subprocess.run(
            [sys.executable, "-c", program],
            check=True,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=LONGEST_SECONDS,
        )
    except (OSError, subprocess.SubprocessError):
        return import_seconds([]) if libraries else 0.0
    return time.perf_counter() - began


def saving_seconds(run: Run) -> float:
    """Of the checkpoint that ends the run; 0.0 where none can be saved here."""
    try:
        cost = checkpoint_cost(run, keeps_best=run.stopping is not None)
    except HastenError:
        return 0.0
    return cost.stall_seconds + cost.seconds
