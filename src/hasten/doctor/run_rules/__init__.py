"""What can be found in a running job: one rule a file, all of them enrolled here."""

from hasten.doctor.rule import RunRule
from hasten.doctor.run_rules import (
    allocator_retries,
    copies,
    device_idle,
    graph_breaks,
    memory_grows,
    memory_returned,
    python_loop,
    reads,
    recompilations,
    slow_evaluation,
    slow_loading,
    slow_transform,
    slow_update,
    small_batch,
    stall,
)

ALL: tuple[RunRule, ...] = (
    slow_loading.RULE,
    slow_transform.RULE,
    small_batch.RULE,
    python_loop.RULE,
    reads.RULE,
    copies.RULE,
    memory_grows.RULE,
    slow_update.RULE,
    slow_evaluation.RULE,
    graph_breaks.RULE,
    recompilations.RULE,
    stall.RULE,
    device_idle.RULE,
    allocator_retries.RULE,
    memory_returned.RULE,
)

__all__ = ["ALL"]
