"""What a process of `hasten train` takes around its training, whatever the plan.

Arms are forked from a process that has loaded torch and hasten, and save nothing, so they pay for neither. Both are
measured once in a search: a new interpreter imports what `hasten train` and the job's file import; and an arm saves a
checkpoint, as the run does at its end.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Sequence

from hasten.doctor.profiling.checkpoint_cost import checkpoint_cost
from hasten.errors import HastenError
from hasten.training.run import Run
from hasten.tuning.trials.preloaded_libraries import statement_of

LONGEST_SECONDS = 120.0  # of importing; the start of a job whose libraries take longer is not counted
IMPORTED_BY_SCRIPTS = ("torch._dynamo",)  # torch imports it with the first optimizer
IMPORTED_BY_TRAIN = ("hasten.cli.train_command", "hasten.entry", *IMPORTED_BY_SCRIPTS)


def import_seconds(libraries: Sequence[str], always: Sequence[str] = IMPORTED_BY_TRAIN) -> float:
    """Of a new interpreter with these libraries, from its start to its end. Where they cannot be imported, of one
    with `always` alone: the job's own file reports what is wrong with them."""
    program = "; ".join(map(statement_of, (*always, *libraries)))
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
        return import_seconds([], always) if libraries else 0.0
    return time.perf_counter() - began


def saving_seconds(run: Run, *, keeps_best: bool) -> float:
    """Of the checkpoint that ends the run; 0.0 where none can be saved here. keeps_best: as of checkpoint_cost."""
    try:
        cost = checkpoint_cost(run, keeps_best=keeps_best)
    except HastenError:
        return 0.0
    return cost.stall_seconds + cost.seconds
