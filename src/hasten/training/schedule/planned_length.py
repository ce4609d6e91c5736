"""How long a run is planned to be."""

from __future__ import annotations

import math

from hasten.errors import JobError
from hasten.facts.job import Job


def planned_length(job: Job, steps_per_epoch: int | None) -> tuple[int | None, int | None]:
    """Optimizer steps and epochs; None where the data does not tell. Raises JobError where nobody says."""
    if steps_per_epoch is None:
        if job.max_steps is None:
            raise JobError(
                "max_steps", "is not given, and the training data has no length", "say how long: max_steps=10_000"
            )
        return job.max_steps, None
    steps = min(
        job.epochs * steps_per_epoch if job.epochs is not None else math.inf,
        job.max_steps if job.max_steps is not None else math.inf,
    )
    return int(steps), math.ceil(steps / steps_per_epoch)
