"""A slow line without tensor operations.

What it finds: Lines of the job that take a fifth of the step or more and start no tensor operation: they wait, read or
write files, log, or work on NumPy arrays and Python objects.

Why it costs: The model waits meanwhile, and so does the device as soon as its queue is empty.

When to ignore it: Where the next step depends on it, as a simulation or a search does.

Fix: Do it every so many steps, in another thread, or on tensors; prepare data in the data set, where workers do it.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import stalls


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    for line in stalls(profile):
        share = line.seconds / profile.together.value
        message = (
            f"{line.function} spends {100 * share:.0f} % of a step on this line, and no operation on tensors begins"
        )
        yield FoundInRun(message, line.high, line)


RULE = RunRule(
    code="H712",
    fix="do it every so many steps, beside the training, or on tensors",
    check=check,
)
