"""zero_grad(set_to_none=False).

What it finds: `zero_grad(set_to_none=False)` of an optimizer or a module.

Why it matters: Every gradient is filled with zeros, and the backward pass adds to it. That is two more passes
over all gradients in each step. With `None`, the default since torch 2.0, the backward pass writes each
gradient once.

Fix: Remove the argument.

    optimizer.zero_grad()

When to ignore: Code keeps a reference to `.grad`, or reads it before the next backward pass.

Automatic fix: Unsafe. Code that reads `.grad` after `zero_grad()` finds `None`, and an optimizer skips a
parameter without a gradient.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Replace
from hasten.doctor.rule import Code, Found, Preserves, Safety, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    for call in code.methods("zero_grad"):
        if code.values.constant_argument(call, "set_to_none", 0) is False:
            edits = tuple(Replace(each, "") for each in call.keywords if each.arg == "set_to_none")
            message = f"{ast.unparse(call.func)}(set_to_none=False) fills every gradient with zeros"
            yield Found(call, message, edits=edits)


RULE = SourceRule(
    code="H303",
    severity=Severity.SLIGHT,
    fix="remove set_to_none=False",
    safety=Safety.UNSAFE,
    preserves=Preserves.BITS,
    check=check,
)
