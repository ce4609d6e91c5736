"""A DistributedSampler without set_epoch().

What it finds: A shuffling DistributedSampler of several epochs of training, whose `set_epoch` the file never calls.

Why it costs: The sampler shuffles by its seed and epoch. Without set_epoch(), every epoch has the order of the first,
and each process sees the same part of the data.

When to ignore it: Where something outside the file calls `set_epoch`.

Fix: Call `sampler.set_epoch(epoch)` at the beginning of every epoch.

Safety: Nothing is changed by itself: which loop counts epochs, a person knows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.rule import Code, Found, Severity, SourceRule

_SAMPLER = "torch.utils.data.DistributedSampler"


def check(code: Code) -> Iterator[Found]:
    informed = _with_epoch(code)
    if informed is None:
        return
    for loader in code.loaders:
        if not loader.steps or not loader.epochs or loader.given_to:
            continue
        for sampler in _samplers(code, loader.call):
            if sampler not in informed and code.values.constant_argument(sampler, "shuffle", 3) in {ABSENT, True}:
                informed.add(sampler)  # two loaders may have the same
                yield Found(sampler, "without set_epoch(), every epoch has the order of the first")


def _samplers(code: Code, loader: ast.Call) -> set[ast.Call]:
    given = code.values.argument(loader, "sampler", 3)
    calls = code.origins.calls(given) if isinstance(given, ast.expr) else []
    return {call for call in calls if code.names.qualified(call.func) == _SAMPLER}


def _with_epoch(code: Code) -> set[ast.Call] | None:
    """The samplers on which set_epoch is called; None where it may be called on any."""
    found = set[ast.Call]()
    for call in code.methods("set_epoch"):
        assert isinstance(call.func, ast.Attribute)
        base = call.func.value
        by_loader = isinstance(base, ast.Attribute) and base.attr in {"sampler", "batch_sampler"}
        while isinstance(base, ast.Attribute) and base.attr in {"sampler", "batch_sampler"}:
            base = base.value
        for each in code.origins.of(base):
            if not isinstance(each.node, ast.Call) or each.entries:
                return None
            if code.names.qualified(each.node.func) == _SAMPLER:
                found.add(each.node)
            elif by_loader:
                found |= _samplers(code, each.node)
            elif code.names.class_named(each.node.func) is None:
                return None
    return found


RULE = SourceRule(
    code="H105",
    severity=Severity.WRONG,
    fix="call its set_epoch(epoch) at the beginning of every epoch",
    check=check,
)
