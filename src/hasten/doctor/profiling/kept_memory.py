"""What a step takes where no memory goes back to the system, as plans with `allocator = "keep_freed_memory"` have it.

To be measured last: the C library no longer adapts to the sizes that it sees once somebody has told it what to keep.
"""

from __future__ import annotations

from hasten.doctor.profiling.line_costs import seconds_of
from hasten.doctor.profiling.timed_steps import Stretches
from hasten.facts.profiles import RetainedMemory, Seconds
from hasten.techniques.setup import ProcessOptions
from hasten.training.run import Run
from hasten.training.setup.process_options import process_options


def kept_memory(run: Run, stretches: Stretches, steps: int, times: int) -> RetainedMemory | None:
    """Of stretches over the start of one epoch, so many of either kind: the same batches in both. None where the C
    library keeps to no such setting."""
    epoch = run.epoch + 1

    def taken() -> float:
        run.built.batches.position.epoch = epoch - 1  # the same one each time
        run.skip_to_next_epoch()
        return stretches.take(steps).seconds

    def all_taken() -> Seconds:
        taken()  # it reads what the later ones find at hand, and what it touches first is new with either setting
        return seconds_of([taken() for _ in range(times)])

    returned = all_taken()
    with process_options(ProcessOptions(keep_freed_memory=True)) as notices:
        return None if notices else RetainedMemory(kept=all_taken(), returned=returned)
