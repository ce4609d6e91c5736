"""A synchronize() in every step.

What it finds: `torch.cuda.synchronize()` in every turn of a training loop.

Why it costs: Work on a device is queued: Python prepares the next step while the device computes this one. A wait in
every step prevents that, and the device then waits for Python.

When to ignore it: In a script that only measures its steps one by one.

Fix: Remove it. To time a step, record two `torch.cuda.Event(enable_timing=True)`, and wait once, after the loop.

Safety: Unsafe: a clock that is read next to it measures something else without it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Remove
from hasten.doctor.rule import Code, Found, Safety, SourceRule

_WAITS = frozenset(f"torch.{name}.synchronize" for name in ("cuda", "mps", "xpu", "accelerator"))


def check(code: Code) -> Iterator[Found]:
    for step, call in code.training.called_every_turn():
        name = code.names.qualified(call.func)
        if name in _WAITS and step.updates:
            statement = code.names.parents[call]
            edits = (Remove(statement),) if isinstance(statement, ast.Expr) else ()
            yield Found(call, f"{ast.unparse(call)} waits for all that is queued, in every step", edits=edits)


RULE = SourceRule(
    code="H306",
    fix="remove it; time steps by torch.cuda.Event(enable_timing=True), or many of them together",
    safety=Safety.UNSAFE,
    check=check,
)
