"""Numbers that are read from tensors in every step.

What it finds: Lines of the job that read numbers out of tensors (`.item()`, `float()`, a condition on a tensor) in each
step, and that take a twentieth of it or more.

Why it costs: On an accelerator each read waits for all queued work, so Python cannot prepare what comes next. On a CPU
each read is an operation, and Python that works on single numbers is slow.

When to ignore it: Where the number decides what is computed next.

Fix: Keep sums and counts in tensors, and read them every so many steps.

Safety: Nothing is changed by itself: when the number is needed, only a person knows.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule
from hasten.doctor.run_rules.step_costs import MUCH

_BESIDE = 1.25  # what is computed behind them begins with cold caches, and threads that have gone to sleep


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    for line in profile.lines:
        mostly_reads = line.reads and not line.in_loading and 4 * line.reads >= line.operations
        if mostly_reads and line.seconds > MUCH * profile.together.value:
            times = f"{line.reads:,} numbers are" if line.reads > 1 else "a number is"
            seconds = min(_BESIDE * line.high, profile.together.value)
            yield FoundInRun(f"{times} read from tensors in every step", seconds, line)


RULE = RunRule(
    code="H705",
    fix="keep it in tensors, and read it every so many steps",
    technique="device_metrics",
    check=check,
)
