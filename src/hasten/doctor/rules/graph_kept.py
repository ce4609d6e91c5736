"""Sum or list of losses that keeps every graph.

What it finds: `total += loss` or `losses.append(loss)` in a training loop that calls `backward()` on `loss`.

Why it matters: The sum or list references the autograd graph of every loss. `backward()` frees the saved
activations, but not the graph. So memory grows with every step, and the graph of the sum grows as long as the
epoch.

Fix: Add the detached loss. It stays on its device, and nothing waits.

    total += loss.detach()
    losses.append(loss.detach())

When to ignore: `backward()` is called on the sum. The rule does not report a sum where it sees that call.

Automatic fix: Safe. The value is the same, only its `requires_grad` differs. A sum that is passed to other
code is not changed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Append
from hasten.doctor.reading.objects.single_tensors import Single
from hasten.doctor.rule import Code, Found, Preserves, Safety, SourceRule


def check(code: Code) -> Iterator[Found]:
    single = Single(code.names)
    for step in code.training.steps:
        for kept in code.accumulated.of_step(step):
            if code.tensors.is_attached(kept.value) and (kept.is_sum or code.tensors.is_loss(kept.value)):
                total, value = ast.unparse(kept.total), ast.unparse(kept.value)
                message = f"{total} keeps the graph of every {value}: memory grows each step"
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
    fix="add .detach(): the number stays on the device, and the graph is freed",
    safety=Safety.SAFE,
    preserves=Preserves.BITS,
    check=check,
)
