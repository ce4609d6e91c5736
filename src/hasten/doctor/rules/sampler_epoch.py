"""DistributedSampler without set_epoch().

What it finds: A shuffling DistributedSampler that is used for several epochs, in a file that never calls
`set_epoch`.

Why it matters: The sampler shuffles by its seed and its epoch number. Without `set_epoch()` every epoch
repeats the order of the first, and each process always sees the same part of the data.

Fix: Call `set_epoch` at the start of every epoch.

    for epoch in range(epochs):
        sampler.set_epoch(epoch)
        for x, y in loader:
            ...

When to ignore: Code outside the file calls `set_epoch`.

Automatic fix: None. Only you know which loop counts the epochs.
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
            yield Found(sampler, "DistributedSampler without set_epoch(): every epoch repeats the order of the first")


def _samplers(code: Code, loader: ast.Call) -> list[ast.Call]:
    given = code.values.argument(loader, "sampler", 3)
    calls = code.origins.calls(given) if isinstance(given, ast.expr) else []
    return [call for call in calls if code.names.qualified(call.func) == _SAMPLER]


RULE = SourceRule(
    code="H105",
    severity=Severity.WRONG,
    fix="call sampler.set_epoch(epoch) at the start of every epoch",
    check=check,
)
