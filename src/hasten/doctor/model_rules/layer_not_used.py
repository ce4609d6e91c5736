"""A layer that training never calls.

What it finds: Modules with parameters whose forward did not run in a few real training steps, and whose parameters got
no gradient in any other way.

Why it costs: Their parameters take memory, in the model, in every checkpoint and often in the optimizer. Data
parallelism over several processes stops at them unless it searches for unused parameters, which costs a pass over the
graph in every step. Often one was meant to be called.

When to ignore it: Where it is only called now and then, as a stochastic depth or an expert is, or in evaluation alone.

Fix: Call it, or take it out of the model.

Safety: Nothing is changed by itself.
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
    fix="call it, or take it out of the model",
    check=check,
)
