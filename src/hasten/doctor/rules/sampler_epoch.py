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
    if any(code.methods("set_epoch")):
        return
    trained = [each for each in code.loaders if each.steps and each.epochs and not each.given_to]
    for sampler in dict.fromkeys(sampler for each in trained for sampler in _samplers(code, each.call)):
        if code.values.constant_argument(sampler, "shuffle", 3) in {ABSENT, True}:
            yield Found(sampler, "without set_epoch(), every epoch has the order of the first")


def _samplers(code: Code, loader: ast.Call) -> list[ast.Call]:
    given = code.values.argument(loader, "sampler", 3)
    calls = code.origins.calls(given) if isinstance(given, ast.expr) else []
    return [call for call in calls if code.names.qualified(call.func) == _SAMPLER]


RULE = SourceRule(
    code="H105",
    severity=Severity.WRONG,
    fix="call its set_epoch(epoch) at the beginning of every epoch",
    check=check,
)
