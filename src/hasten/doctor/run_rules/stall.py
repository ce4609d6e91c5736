"""Slow line without tensor operations.

What it finds: Lines of the job that take at least 20 % of the step and start no tensor operation. They wait,
read or write files, log, or work on NumPy arrays and Python objects.

Why it matters: The model waits for the line, and so does the device once its queue is empty.

Fix: Run it every N steps, in another thread, or on tensors. Prepare data in the data set, where loader
workers run it.

    if step % 100 == 0:
        save_preview(images)

When to ignore: The next step depends on it, as with a simulation or a search.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import stalls


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    for line in stalls(profile):
        share = line.seconds / profile.together.value
        message = f"{line.function} spends {100 * share:.0f} % of a step on this line, without a tensor operation"
        yield FoundInRun(message, line.high, line)


RULE = RunRule(
    code="H712",
    fix="run it every N steps, in another thread, or on tensors",
    check=check,
)
