"""Optimizer update takes a large share of the step.

What it finds: A job whose optimizer update takes at least 10 % of the step. Clipping and the check of the
gradients are part of it.

Why it matters: An optimizer that is not fused starts several small operations for each parameter.

Fix: Add `fused_optimizer` to the plan, or pass `fused=True`. Parameters in fewer, larger tensors help too.

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

When to ignore: The optimizer itself computes a lot, as second-order methods do.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule

_MUCH = 0.1  # of a step


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    seconds = profile.parts.get("optimizer", 0.0)
    if seconds > _MUCH * profile.together.value:
        share = seconds / profile.together.value
        yield FoundInRun(f"the optimizer update takes {100 * share:.0f} % of a step", seconds)


RULE = RunRule(
    code="H708",
    fix="add fused_optimizer to the plan",
    technique="fused_optimizer",
    check=check,
)
