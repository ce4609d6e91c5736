"""What a step takes where no memory goes back to the system, as plans with `allocator = "keep_freed_memory"` have it.

To be measured last: the C library no longer adapts to the sizes that it sees once somebody has told it what to keep.
"""

from __future__ import annotations

from hasten.doctor.stretches import Stretches
from hasten.doctor.timings import seconds_of
from hasten.facts.run_look import Seconds
from hasten.techniques.setup import ProcessOptions
from hasten.training.process import process_options

_TIMES_TAKEN = 3


def kept_memory(stretches: Stretches, steps: int) -> Seconds | None:
    """Of a step, as the job is but for that. None where the C library keeps to no such setting."""
    with process_options(ProcessOptions(keep_freed_memory=True)) as notices:
        if notices:
            return None
        stretches.take(steps)  # what they touch first is new here as well
        return seconds_of([stretches.take(steps).seconds for _ in range(_TIMES_TAKEN)])
