"""Memory grows with every step.

What it finds: A job whose process or device held more memory after each round of steps, once set-up was over.

Why it matters: Something keeps what it should free, most often a list or a sum of losses with their graphs.
Allocating new memory in every step is slow, and in the end memory runs out.

Fix: Store detached tensors or numbers, clear lists of predictions, and bound caches.

    losses.append(loss.detach())
    predictions.clear()  # after each evaluation

When to ignore: A data set is read into memory during the first epoch.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule, Severity
from hasten.facts.formatting import byte_size

_BESIDE = 2  # what is kept is read and written as well, and pushes other things out of the processor's caches


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    if profile.growth is not None:
        steps = profile.free_bytes // profile.growth
        message = f"memory grows by {byte_size(profile.growth)} in every step, and runs out after {steps:,} more steps"
        seconds = _BESIDE * profile.growth / profile.page_bytes * profile.page_seconds
        yield FoundInRun(message, min(seconds, profile.together.value))


RULE = RunRule(
    code="H707",
    severity=Severity.FAILS,
    fix="free what each step keeps: append loss.detach(), clear lists, bound caches",
    check=check,
)
