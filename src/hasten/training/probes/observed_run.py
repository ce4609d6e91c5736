"""Tell an observer where a run is inside its steps.

with observing(run, clock):
    ...                         # run.step(batch) as ever; clock(phase) is called at every boundary
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from hasten.training.run import Run
from hasten.training.step_parts.phases import Observer


@contextmanager
def observing(run: Run, observer: Observer) -> Iterator[None]:
    """An exception of the observer passes through the step, as one of the job's loss does."""
    observed = run.built.placement, run.built.step.window
    before = [each.observer for each in observed]
    try:
        for each in observed:
            each.observer = observer
        yield
    finally:
        for each, own in zip(observed, before, strict=True):
            each.observer = own
