"""Memory that is released to the system and allocated again in every step.

What it finds: Jobs that touch much new memory in each step without keeping it, where mapping it takes a twentieth of
the step or more, and whose plan does not keep freed memory.

Why it costs: The C library returns large freed blocks to the system, and the next step requests them again: the system
maps and clears them page by page. The bound is the new pages of a step by the measured seconds of one, and as much
again for the caches that they pass through.

When to ignore it: Where other programs need that memory in between, or the job maps memory or files itself.

Fix: Plan `allocator = "keep_freed_memory"`.

Safety: Nothing is changed by itself. The same bits are computed; the process stays at its peak size.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import MUCH
from hasten.facts.formatting import byte_size

_BESIDE = 2  # as in memory_grows: new memory pushes other things out of the processor's caches


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    pages = max(0.0, profile.new_pages - (profile.growth or 0) / profile.page_bytes)
    seconds, together = pages * profile.page_seconds, profile.together.value
    if seconds > MUCH * together and not profile.keeps_freed_memory:
        held = "beyond what grows" if profile.growth else "though the process holds no more"
        memory = byte_size(round(pages * profile.page_bytes))
        yield FoundInRun(
            f"{memory} of memory are allocated again in every step, {held}", min(_BESIDE * seconds, together)
        )


RULE = RunRule(
    code="H715",
    fix='plan allocator = "keep_freed_memory"',
    technique="allocator",
    check=check,
)
