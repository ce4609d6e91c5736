"""The arms of bench/before_after.py: one of the example jobs, with or without its plan."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from bench.windows import windows_of

import hasten
from hasten.training.setup.load_job import load_job


def example(job: str, plan: str | None) -> Callable[[int], None]:
    """A window trains the job itself, its own loader included, for so many optimizer steps."""
    # The run is longer than any benchmark, so the schedule must not end inside it: the rate stays.
    endless = replace(load_job(job), epochs=None, max_steps=10**9, schedule=None, stop=None)
    return windows_of(hasten.prepare(endless, plan))
