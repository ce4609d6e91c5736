"""Layer that training never calls.

What it finds: Modules whose `forward()` did not run in a few real training steps, and whose parameters got no
gradient.

Why it matters: Their parameters take memory in the model, in checkpoints and often in the optimizer. Data
parallelism fails on them, or searches for unused parameters in every step. Often such a layer was meant to be
called.

Fix: Call the layer in `forward()`, or remove it from the model.

When to ignore: The layer runs only in some steps (stochastic depth, mixture of experts), or only in
evaluation.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInModel, ModelProfile, ModelRule, Severity


def check(profile: ModelProfile) -> Iterator[FoundInModel]:
    for layer in profile.layers:
        if not layer.is_called and layer.parameters:
            yield FoundInModel(layer, f"{layer.name} ({layer.kind}, {layer.parameters:,} parameters) was never called")


RULE = ModelRule(
    code="H602",
    severity=Severity.WRONG,
    fix="call it in forward(), or remove it from the model",
    check=check,
)
