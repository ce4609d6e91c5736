"""One whole planned run in a process of its own, and how long it took: what a tuner's prediction is held against.

    python -m bench.tuner_planned JOB [PLAN]

The prediction counts everything from building the job to the end of the run, and nothing before: what a person also
waits for is the interpreter, torch, hasten and the libraries that the job imports. So these are loaded first, as they
are for the arms of a search, and the seconds begin with the job's own file. Threads, seeds, run folder and evaluations
are those of `hasten train`. Caches are the caller's business: the prediction is that of a first run.
"""

from __future__ import annotations

import importlib
import json
import sys
import tempfile
import time
from pathlib import Path

import hasten
from hasten.training.locate import load_job
from hasten.tune.libraries import libraries_of

OURS = ("hasten.tune.serve", "torch._dynamo")  # what the arms of a search have loaded before they begin


def timed(name: str, plan: str | None) -> dict[str, float]:
    """seconds: of all; loop_seconds: from the first step on, as the run's own log says."""
    for library in (*OURS, *libraries_of(name)):
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as folder:
        begin = time.perf_counter()
        result = hasten.train(load_job(name), plan, run_dir=Path(folder) / "run", receivers=[], name=name)
        seconds = time.perf_counter() - begin
    return {"seconds": seconds, "loop_seconds": result.seconds, "steps": result.steps}


if __name__ == "__main__":
    print(json.dumps(timed(sys.argv[1], sys.argv[2] if len(sys.argv) > 2 else None)))
