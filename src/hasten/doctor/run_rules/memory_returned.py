"""Memory that goes back to the system and is taken anew.

What it finds: Jobs that touch much new memory in each step, beside what the process goes on to hold. The look takes
some steps several times, then tells the C library to keep what is freed, and takes the same ones as often: they are
shorter by a twentieth or more, and each time shorter than ever before.

Why it costs: The C library gives large blocks back to the system when they are freed. The next step asks for them
again, and the system maps and clears them page by page. The GNU C library adapts to the sizes that it sees, so one
start of a job may be hit and the next one not.

When to ignore it: Where the memory that the job does not need for a moment is needed by others, and where the
job maps memory or files itself.

Fix: Plan `allocator = "keep_freed_memory"`.

Safety: Nothing is changed by itself. The same bits are computed; the process stays at its peak size.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunRule
from hasten.doctor.run_rules.step_costs import MUCH
from hasten.facts.finding import Severity
from hasten.facts.formatting import byte_size
from hasten.facts.profiles import RunProfile

_STARTS = 1.25  # times: another start of the same job may pay so much more for its pages than this one


def check(look: RunProfile) -> Iterator[FoundInRun]:
    if look.kept_memory is None:
        return
    kept, returned = look.kept_memory.kept, look.kept_memory.returned
    if kept.high < returned.low and returned.value - kept.value > MUCH * returned.value:
        memory = byte_size(max(0, round(look.new_pages * look.page_bytes - (look.growth or 0))))
        held = "beside what grows" if look.growth else "though no more is held"
        most = look.together.value * (1 - kept.low / (_STARTS * returned.high))
        yield FoundInRun(f"{memory} of memory are new in every step, {held}", most)


RULE = RunRule(
    code="H715",
    name="memory_returned",
    severity=Severity.SLOW,
    fix='plan allocator = "keep_freed_memory"',
    technique="allocator",
    check=check,
)
