"""Memory that grows with every step.

What it finds: Jobs whose process, or whose device, held more memory after each stretch of steps than before it, once
the first ones had set things up.

Why it costs: Something keeps what it should let go: most often a list or a sum of losses that still have their graphs.
Memory that is new in every step is slow as well, and in the end there is none.

When to ignore it: Where a data set is read into memory during the first epoch, which comes to an end.

Fix: Append `loss.detach()` or a number, not `loss`; empty what collects predictions; look for caches without a bound.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunRule
from hasten.facts.finding import Severity
from hasten.facts.formatting import byte_size
from hasten.facts.profiles import RunProfile

_BESIDE = 2  # what is kept is read and written as well, and pushes other things out of the processor's caches


def check(look: RunProfile) -> Iterator[FoundInRun]:
    if look.growth is not None:
        steps = look.free_bytes // look.growth
        message = f"memory grows by {byte_size(look.growth)} in every step, and is full after {steps:,} more"
        seconds = _BESIDE * look.growth / look.page_bytes * look.page_seconds
        yield FoundInRun(message, min(seconds, look.together.value))


RULE = RunRule(
    code="H707",
    name="memory_grows",
    severity=Severity.FAILS,
    fix="let go what is kept of each step: losses.append(loss.detach()), lists that are emptied, caches with a bound",
    check=check,
)
