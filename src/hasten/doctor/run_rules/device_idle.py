"""An accelerator that waits for Python.

What it finds: Jobs on an accelerator whose kernels take less than four fifths of a step whose batch is loaded already.

Why it costs: A kernel begins when Python has asked for it. Where kernels are short, asking takes longer than computing.

When to ignore it: Where the step is short because the model is small on purpose.

Fix: Plan `compile`, or try a larger batch; remove reads of the device's numbers (`.item()`).

Safety: Nothing is changed by itself.
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
            share = idle / profile.computing.value
            yield FoundInRun(f"the device is idle for {100 * share:.0f} % of a step whose batch is there already", idle)


RULE = RunRule(
    code="H713",
    fix="plan compile, or try a larger batch",
    technique="compile",
    check=check,
)
