"""Allocation retries.

What it finds: Jobs on an accelerator whose allocator found no free block in some steps, released its cached blocks, and
tried again; and how much of what it holds is fragmented.

Why it costs: Each time the device has to finish first. The next such step may run out of memory.

When to ignore it: Never: it is the last sign before memory is full.

Fix: Plan `allocator` where much is fragmented; else a smaller `microbatch`, or `activation_checkpointing`.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.facts.formatting import byte_size


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    use = profile.device_use
    if use is not None and use.retries:
        message = (
            f"the allocator ran out of memory and retried {use.retries:,} times in {use.steps:,} steps; "
            f"{100 * use.fragmented:.0f} % of its {byte_size(use.reserved_bytes)} are fragmented"
        )
        yield FoundInRun(message, None)


RULE = RunRule(
    code="H714",
    fix="plan allocator, a smaller microbatch, or activation_checkpointing",
    technique="allocator",
    check=check,
)
