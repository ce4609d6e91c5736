"""An update that takes a large share of the step.

What it finds: Jobs whose optimizer, with clipping and the check of the gradients, takes a tenth of the step or more.

Why it costs: An optimizer that is not fused starts several small operations for each parameter.

When to ignore it: Where the optimizer's arithmetic is large by itself, as second-order methods are.

Fix: Plan `fused_optimizer`, or give `fused=True`; keep parameters in fewer tensors.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInRun, RunProfile, RunRule

_MUCH = 0.1  # of a step


def check(profile: RunProfile) -> Iterator[FoundInRun]:
    seconds = profile.parts.get("optimizer", 0.0)
    if seconds > _MUCH * profile.together.value:
        yield FoundInRun(f"the update takes {100 * seconds / profile.together.value:.0f} % of a step", seconds)


RULE = RunRule(
    code="H708",
    fix="plan fused_optimizer",
    technique="fused_optimizer",
    check=check,
)
