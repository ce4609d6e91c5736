"""Memory that is released to the system and allocated again in every step.

What it finds: Jobs that touch much new memory in each step without keeping it. The profile takes some steps several
times, then lets the C library keep freed memory, and takes the same steps again: they are shorter by a twentieth or
more, each time shorter than ever before.

Why it costs: The C library returns large freed blocks to the system, and the next step requests them again: the system
maps and clears them page by page. The GNU C library adapts to the sizes it sees, so one start of a job may be affected
and the next one not.

When to ignore it: Where other programs need that memory in between, or the job maps memory or files itself.

Fix: Plan `allocator = "keep_freed_memory"`.

Safety: Nothing is changed by itself. The same bits are computed; the process stays at its peak size.
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
        held = "beyond what grows" if profile.growth else "though the process holds no more"
        most = profile.together.value * (1 - kept.low / (_STARTS * returned.high))
        yield FoundInRun(f"{memory} of memory are allocated again in every step, {held}", most)


RULE = RunRule(
    code="H715",
    fix='plan allocator = "keep_freed_memory"',
    technique="allocator",
    check=check,
)
