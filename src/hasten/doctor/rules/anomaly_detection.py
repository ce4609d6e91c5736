"""Anomaly detection left on.

What it finds: `torch.autograd.set_detect_anomaly(True)` and `with torch.autograd.detect_anomaly():` under no
condition.

Why it matters: The forward pass records a stack trace for every operation. The backward pass checks every
gradient for NaN, and each check waits for the device.

Fix: Remove it, or enable it with an option.

    torch.autograd.set_detect_anomaly(args.debug)

When to ignore: You are searching for the origin of a NaN.

Automatic fix: Unsafe. The next NaN is not traced to the operation that made it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.rule import Code, Found, Preserves, Safety, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    for call in code.calls_to("torch.autograd.set_detect_anomaly", "torch.autograd.detect_anomaly"):
        chosen = [*call.args, *(each.value for each in call.keywords)]
        is_on = all(code.values.constant(each) is True for each in chosen)
        if is_on and not code.is_conditional(call):
            message = f"{ast.unparse(call)} checks every gradient for NaN and records a stack trace for every operation"
            yield Found(call, message, edits=_edits(call))


def _edits(call: ast.Call) -> tuple[Replace, ...]:
    """`set_detect_anomaly(False)`, which can be entered as the other can. None where the file may not have its name."""
    match call:
        case ast.Call(ast.Attribute(base, "detect_anomaly")):
            return (Replace(call, f"{ast.unparse(base)}.set_detect_anomaly(False)"),)
        case ast.Call(_, [mode]) | ast.Call(_, [], [ast.keyword("mode", mode)]):
            return (Replace(mode, "False"),)
        case _:
            return ()


RULE = SourceRule(
    code="H304",
    severity=Severity.COSTLY,
    fix="remove it, or enable it with an option",
    safety=Safety.UNSAFE,
    preserves=Preserves.BITS,
    check=check,
)
