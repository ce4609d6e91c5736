"""Adding up a loss that still has its graph.

What it finds: `total = total + loss` or `total += loss` in a training loop, where `loss` is what backward() is called
on, and lists that collect it.

Why it costs: The sum refers to every loss that went into it, and so do their graphs with all that backward() leaves of
them. Memory grows with every step of the epoch, and the sum itself becomes a chain as long as the epoch.

When to ignore it: Where the sum is what backward() is called on, as in accumulation over parts of one batch. That is
not reported.

Fix: Add `loss.detach()`: the number stays on its device, and nothing waits for it.

Safety: Safe: the sum has the same value. Only its `requires_grad` differs.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.code import Code
from hasten.doctor.contract import Found, Rule
from hasten.doctor.tensors import differentiated
from hasten.doctor.training import Step
from hasten.facts.finding import Safety, Severity


def check(code: Code) -> Iterator[Found]:
    summed = {ast.unparse(each) for call in code.training.backwards for each in differentiated(call)}
    for step in code.training.steps:
        for each in step.ran:
            total, added = _added(each.node)
            if total is None or not code.tensors.is_attached(added) or code.training.is_without_gradients(each.around):
                continue
            if ast.unparse(total) not in summed and not _begins_in(step, total):
                yield Found(added, f"{ast.unparse(total)} keeps the graph of every {ast.unparse(added)} in it")


def _added(node: ast.AST) -> tuple[ast.expr | None, ast.expr]:
    """The sum or list, and the loss that goes into it."""
    match node:
        case ast.AugAssign(total, ast.Add(), value):
            return total, value
        case ast.Assign([total], ast.BinOp(left, ast.Add(), value)) if ast.unparse(left) == ast.unparse(total):
            return total, value
        case ast.Call(ast.Attribute(total, "append"), [value], []):
            return total, value
        case _:
            return None, ast.Constant(None)


def _begins_in(step: Step, total: ast.expr) -> bool:
    """Whether each step has one of its own."""
    said = ast.unparse(total)
    assigned = [each.node for each in step.ran if isinstance(each.node, ast.Assign)]
    starts = [each.value for each in assigned if said in map(ast.unparse, each.targets)]
    return any(said not in map(ast.unparse, ast.walk(value)) for value in starts)


RULE = Rule(
    code="H205",
    name="graph_kept",
    severity=Severity.SLOW,
    fix="add its .detach(): the number stays on the device, and the graph can go",
    safety=Safety.SAFE,
    check=check,
)
