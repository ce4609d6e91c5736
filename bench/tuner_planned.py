"""One whole planned run in a process of its own, and how long it took: what a tuner's prediction is held against.

    python -m bench.tuner_planned JOB [PLAN] [--seed SEED]

The seconds begin with the job's own file: the interpreter, torch, hasten and the libraries that the job imports are
loaded first, as they are for the arms of a search, and the prediction's process_seconds, which are for these, are taken
off it. What whole processes take is bench.whole_processes's question. Threads, seeds, run folder and evaluations
are those of `hasten train`. Caches are the caller's business: the prediction is that of a first run.
"""

from __future__ import annotations

import argparse
import importlib
import json
import resource
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import hasten
from hasten.training.setup.load_job import load_job
from hasten.tuning.trials.preloaded_libraries import libraries_of

OURS = (
    "hasten.tuning.trials.trial_requests",
    "torch._dynamo",
)  # loaded before a search begins


def timed(name: str, plan: str | None, seed: int | None = None) -> dict[str, Any]:
    """seconds: of all; loop_seconds: from the first step on, as the run's own log says. evaluations: of each, the
    seconds from that first step to its end, and the results. peak_bytes: of memory of this process. seed: None for the
    job's own.
    """
    for library in (*OURS, *libraries_of(name)):
        importlib.import_module(library)
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder) / "run"
        begin = time.perf_counter()
        job = load_job(name)
        job = job if seed is None else replace(job, seed=seed)
        result = hasten.train(job, plan, run_dir=home, receivers=[], name=name)
        seconds = time.perf_counter() - begin
        lines = [json.loads(line) for line in (home / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]
    found = {"seconds": seconds, "loop_seconds": result.seconds, "steps": result.steps}
    peak_bytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    evaluations = evaluations_of(lines)
    return {**found, "results": dict(result.results), "evaluations": evaluations, "peak_bytes": peak_bytes}


def evaluations_of(lines: Sequence[Mapping[str, Any]]) -> list[tuple[float, dict[str, float]]]:
    """Of a run's log: when each ended, and its results. Its own line says how long it took, and the line of training
    before it when it began."""
    found, trained_until = list[tuple[float, dict[str, float]]](), 0.0
    for line in lines:
        if line["event"] == "trained":
            trained_until = line["seconds"]
        elif line["event"] == "evaluated":
            found.append((trained_until + line["seconds"], line["results"]))
    return found


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.tuner_planned")
    parser.add_argument("job")
    parser.add_argument("plan", nargs="?")
    parser.add_argument("--seed", type=int)
    return parser.parse_args()


if __name__ == "__main__":
    options = _options()
    print(json.dumps(timed(options.job, options.plan, options.seed)))
