"""A sum of losses that keeps their graphs.

What it finds: `total += loss` in a training loop, where backward() is called on `loss`, and lists that collect it.

Why it costs: The sum keeps the graph of every loss in it, with all that backward() leaves of them. Memory grows with
every step, and the sum becomes a chain as long as the epoch.

When to ignore it: Where backward() is called on the sum, as in accumulation. That is not reported.

Fix: Add `loss.detach()`: the number stays on its device, and nothing waits for it.

Safety: Safe: the sum has the same value. Only its `requires_grad` differs. A sum that other code may get is left alone.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Append
from hasten.doctor.reading.objects.single_tensors import Single
from hasten.doctor.rule import Code, Found, Safety, SourceRule


def check(code: Code) -> Iterator[Found]:
    single = Single(code.names)
    for step in code.training.steps:
        for kept in code.accumulated.of_step(step):
            if code.tensors.is_attached(kept.value) and (kept.is_sum or code.tensors.is_loss(kept.value)):
                message = f"{ast.unparse(kept.total)} keeps the graph of every {ast.unparse(kept.value)} that is added"
                computed = isinstance(kept.value, ast.BinOp) or code.tensors.is_differentiated(kept.value)
                is_one = computed or single.is_tensor(kept.value)
                edits = (Append(kept.value, ".detach()"),) if is_one and _stays_here(code, kept.total) else ()
                yield Found(kept.value, message, edits=edits)


def _stays_here(code: Code, total: ast.expr) -> bool:
    """Whether no code out of sight gets the sum, which might go backward through it."""
    if not isinstance(total, ast.Name):
        return False
    scope = code.scopes.of(total)
    for name in code.all(ast.Name):
        call = code.names.parents[name]
        if name.id == total.id and isinstance(call, ast.Call) and name in call.args and code.scopes.of(name) is scope:
            called = code.names.qualified(call.func) or ""
            if not called.startswith(("builtins.", "torch.", "numpy.")):
                return False
    return True


RULE = SourceRule(
    code="H205",
    fix="add its .detach(): the number stays on the device, and the graph can go",
    safety=Safety.SAFE,
    check=check,
)
