"""GPU tensor read by the host in every step.

What it finds: `.item()`, `.cpu()`, `.numpy()`, `.tolist()`, `float(…)`, `print(…)` and formatted strings of a
device tensor, in every iteration of a training loop, in a file that uses an accelerator.

Why it matters: On an accelerator the call blocks until all queued work is done. Python cannot queue the next
step in the meantime, so the device idles afterwards. On a CPU nothing is queued, and the call costs nothing.

Fix: Keep sums on the device, and read them every N steps.

    total += loss.detach()
    if step % 100 == 99:
        print(total.item() / 100)
        total.zero_()

When to ignore: Steps are so long that the wait does not matter. `hasten doctor digits.py:job` measures it.

Automatic fix: Unsafe. A sum of `.item()`s that is read less often becomes a sum on the device, in float64 as Python
adds: its numbers stay. Only you know when other numbers are needed, and Apple's devices have no float64.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.steps.summed_reads import edits_of_sum
from hasten.doctor.rule import Code, Found, Preserves, Safety, SourceRule

_READS = frozenset({"item", "cpu", "numpy", "tolist"})
_FUNCTIONS = frozenset({"builtins.float", "builtins.int", "builtins.print", "builtins.str"})


def check(code: Code) -> Iterator[Found]:
    if not code.devices.accelerated:
        return
    for step in code.training.steps:
        for node in step.once_a_turn:
            if _reads(code, node):
                whole = _whole(code, node)
                shown = ast.unparse(whole.value if isinstance(whole, ast.FormattedValue) else whole)
                message = f"{shown} every step waits for all queued work on a GPU"
                yield Found(whole, message, edits=edits_of_sum(code, step, whole))


def _reads(code: Code, node: ast.AST) -> bool:
    match node:
        case ast.Call(ast.Attribute(base, name), []) if name in _READS:
            return code.tensors.is_on_device(base)
        case ast.Call(ast.Attribute(base, "to"), [ast.Constant("cpu")], []):
            return code.tensors.is_on_device(base)
        case ast.Call(ast.Attribute(ast.Constant(str()), "format"), given, named):
            return any(code.tensors.is_on_device(each) for each in (*given, *(each.value for each in named)))
        case ast.Call(ast.Attribute(_, "info" | "warning"), [_, *given]):
            return any(code.tensors.is_on_device(each) for each in given)
        case ast.BinOp(ast.Constant(str()), ast.Mod(), given):
            parts = given.elts if isinstance(given, ast.Tuple) else [given]
            return any(code.tensors.is_on_device(each) for each in parts)
        case ast.Call(function, given) if code.names.qualified(function) in _FUNCTIONS:
            return any(code.tensors.is_on_device(each) for each in given)
        case ast.FormattedValue(value):
            return code.tensors.is_on_device(value)
        case _:
            return False


def _whole(code: Code, node: ast.AST) -> ast.AST:
    """The chain of calls that it begins: all of `loss.detach().cpu().numpy()`."""
    parent = code.names.parents[node]
    while isinstance(parent, ast.Attribute) or (isinstance(parent, ast.Call) and parent.func is node):
        node, parent = parent, code.names.parents[parent]
    return node


RULE = SourceRule(
    code="H201",
    fix="keep it on the device, and read it every N steps",
    safety=Safety.UNSAFE,
    preserves=Preserves.BITS,
    technique="device_metrics",
    gpu_only=True,
    check=check,
)
