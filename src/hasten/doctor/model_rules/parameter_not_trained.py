"""Parameter that requires a gradient and gets none.

What it finds: Parameters with `requires_grad`, in layers that ran, that got no gradient in a few real
training steps.

Why it matters: They are never trained. A `detach()`, a `no_grad` block or a path around the loss cuts them
off.

Fix: Find what cuts the graph between them and the loss. If they are meant to stay fixed, freeze them.

    for parameter in model.encoder.parameters():
        parameter.requires_grad_(False)

When to ignore: The path runs only in some steps. Frozen parameters are not reported.

Automatic fix: None.
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
    fix="find what detaches it from the loss, or freeze it: requires_grad_(False)",
    check=check,
)
