"""Memory that grows with every step.

What it finds: Jobs whose process, or device, held more memory after each round of steps, once set-up was over.

Why it costs: Something keeps what it should free: most often a list or a sum of losses with their graphs. New memory in
every step is slow as well, and in the end there is none.

When to ignore it: Where a data set is read into memory during the first epoch.

Fix: Append `loss.detach()` or a number, not `loss`; empty what collects predictions; look for caches without a bound.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule, Severity
from hasten.facts.formatting import byte_size

_BESIDE = 2  # what is kept is read and written as well, and pushes other things out of the processor's caches


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    if profile.growth is not None:
        steps = profile.free_bytes // profile.growth
        message = f"memory grows by {byte_size(profile.growth)} in every step, and is full after {steps:,} more"
        seconds = _BESIDE * profile.growth / profile.page_bytes * profile.page_seconds
        yield FoundInRun(message, min(seconds, profile.together.value))


RULE = RunRule(
    code="H707",
    severity=Severity.FAILS,
    fix="let go what is kept of each step: losses.append(loss.detach()), lists that are emptied, caches with a bound",
    check=check,
)
