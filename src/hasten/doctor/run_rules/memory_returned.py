"""Memory returned to the system and allocated again in every step.

What it finds: A job whose steps touch much new memory without keeping it. The profile repeats the same steps
with and without the C library keeping freed memory. With it, the steps were at least 5 % faster, in every
repetition.

Why it matters: The C library returns large freed blocks to the system, and the next step requests them again.
The system then maps and clears them page by page. The GNU C library adapts to the sizes that it sees, so one
start of a job may be affected and the next one not.

Fix: Add `allocator` to the plan.

    [[choice]]
    technique = "allocator"
    value = "keep_freed_memory"

When to ignore: Other programs need that memory in between, or the job maps memory or files itself.

Automatic fix: None. The technique computes the same bits; the process stays at its peak size.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import MUCH
from hasten.facts.formatting import byte_size

_STARTS = 1.25  # times: another start of the same job may pay so much more for its pages than this one


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    if profile.kept_memory is None:
        return
    kept, returned = profile.kept_memory.kept, profile.kept_memory.returned
    if kept.high < returned.low and returned.value - kept.value > MUCH * returned.value:
        memory = byte_size(max(0, round(profile.new_pages * profile.page_bytes - (profile.growth or 0))))
        most = profile.together.value * (1 - kept.low / (_STARTS * returned.high))
        yield FoundInRun(f"every step allocates {memory} that the C library returned to the system before", most)


RULE = RunRule(
    code="H715",
    fix='add allocator = "keep_freed_memory" to the plan',
    technique="allocator",
    check=check,
)
