"""Reading a tensor's number in every step.

What it finds: `.item()`, `.cpu()`, `.numpy()`, `.tolist()`, `float(loss)` and `print(loss)` of the loss in every turn
of a training loop, in a file that uses an accelerator.

Why it costs: The number is only known when the device has computed it. So Python waits, and cannot prepare the next
step meanwhile: the device then waits for Python.

When to ignore it: Where steps are so long that the wait does not count: `hasten doctor` with a job measures it.

Fix: Keep sums on the device (`total += loss.detach()`) and read them every so many steps.

Safety: Nothing is changed by itself: when the number is needed, only a person knows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.code import Code
from hasten.doctor.contract import Found, Rule
from hasten.facts.finding import Severity

_READS = frozenset({"item", "cpu", "numpy", "tolist"})
_KEEP = frozenset({"detach", "cpu", "data", "mean", "sum"})


def check(code: Code) -> Iterator[Found]:
    if not code.uses_accelerator:
        return
    for loop in code.step_loops:
        losses = code.differentiated(loop)
        for call in code.all(ast.Call):
            read = _read_of(code, call)
            if read is not None and read in losses and code.runs_every_turn(call, loop):
                yield Found(call, f"{ast.unparse(call.func)}() waits for the device in every step")


def _read_of(code: Code, call: ast.Call) -> str | None:
    """The name of what is read."""
    if isinstance(call.func, ast.Attribute) and call.func.attr in _READS and not call.args:
        return _name(call.func.value)
    if code.names.qualified(call.func) in {"builtins.float", "builtins.print"} and len(call.args) == 1:
        return call.args[0].id if isinstance(call.args[0], ast.Name) else None
    return None


def _name(node: ast.expr) -> str | None:
    """Of `loss`, `loss.detach()` and the like. Of a chain of reads, the innermost is the one that waits."""
    while True:
        if isinstance(node, ast.Name):
            return node.id
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in _KEEP - _READS:
            node = node.func.value
        elif isinstance(node, ast.Attribute) and node.attr in _KEEP:
            node = node.value
        else:
            return None


RULE = Rule(
    code="H201",
    name="read_every_step",
    severity=Severity.SLOW,
    fix="keep it on the device, and read it every so many steps",
    technique="device_metrics",
    check=check,
)
