"""Accelerator waits for Python.

What it finds: A job on an accelerator whose kernels take less than 80 % of a step, although the batch is
already loaded.

Why it matters: A kernel starts only after Python has launched it. If kernels are short, launching takes
longer than computing.

Fix: Add `compile` to the plan, or try a larger batch. Remove reads of device tensors (`.item()`).

When to ignore: The step is short because the model is small on purpose.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule

_MUCH = 0.2  # of a step


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    use = profile.device_use
    if use is not None and use.busy_seconds is not None:
        idle = profile.computing.value - use.busy_seconds
        if idle > _MUCH * profile.computing.value:
            share = 100 * idle / profile.computing.value
            yield FoundInRun(f"the device is idle for {share:.0f} % of a step whose batch is loaded already", idle)


RULE = RunRule(
    code="H713",
    fix="add compile to the plan, or try a larger batch",
    technique="compile",
    check=check,
)
