"""A parameter that requires a gradient and gets none.

What it finds: Parameters with `requires_grad` of called layers that got no gradient in a few real training steps.

Why it costs: They are never trained: a `detach()`, a `no_grad` block or a path outside of the loss cuts them off.

When to ignore it: Where the path is taken in some steps only. Frozen parameters are not reported.

Fix: Find what cuts the graph between them and the loss, or freeze them with `requires_grad_(False)`.

Safety: Nothing is changed by itself.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInModel, ModelProfile, ModelRule, Severity


def check(profile: ModelProfile) -> Iterator[FoundInModel]:
    for layer in profile.layers:
        if layer.without_gradient:
            names = ", ".join(f"{layer.name}.{each}".lstrip(".") for each in layer.without_gradient)
            yield FoundInModel(layer, f"no gradient reached {names} in {profile.steps} steps")


RULE = ModelRule(
    code="H603",
    severity=Severity.WRONG,
    fix="find what cuts it off from the loss, or freeze it: requires_grad_(False)",
    check=check,
)
