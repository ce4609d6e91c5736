"""Numbers read from tensors in every step.

What it finds: Lines of the job that read numbers out of tensors in each step (`.item()`, `float()`, a
condition on a tensor) and take at least 5 % of it.

Why it matters: On an accelerator each read waits for all queued work, so Python cannot prepare the next
operations. On a CPU each read is an operation, and Python code on single numbers is slow.

Fix: Keep sums and counts in tensors, and read them every N steps.

    correct += (output.argmax(1) == y).sum()  # a tensor on the device
    if step % 100 == 99:
        print(correct.item())

When to ignore: The number decides what is computed next.

Automatic fix: None. Only you know when the number is needed.
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
            numbers = f"{line.reads:,} numbers" if line.reads > 1 else "a number"
            seconds = min(_BESIDE * line.high, profile.together.value)
            yield FoundInRun(f"this line reads {numbers} from tensors in every step", seconds, line)


RULE = RunRule(
    code="H705",
    fix="keep values in tensors, and read them every N steps",
    technique="device_metrics",
    check=check,
)
