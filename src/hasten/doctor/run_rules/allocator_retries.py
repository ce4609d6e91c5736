"""Allocator retries because memory is full.

What it finds: A job on an accelerator whose allocator found no free block in some steps, released its cached
blocks and tried again. The message also states how much of the reserved memory is fragmented.

Why it matters: The device has to finish its work before each retry. The next such step may run out of memory.

Fix: Add `allocator` to the plan if much is fragmented. Otherwise use a smaller `microbatch` or
`activation_checkpointing`.

When to ignore: Never. It is the last warning before memory is full.

Automatic fix: None.
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
    fix="add allocator, a smaller microbatch or activation_checkpointing to the plan",
    technique="allocator",
    check=check,
)
