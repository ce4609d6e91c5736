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

from hasten.doctor.code import Code, Loop
from hasten.doctor.contract import Found, Rule
from hasten.facts.finding import Safety, Severity


def check(code: Code) -> Iterator[Found]:
    for loop in code.step_loops:
        losses = code.differentiated(loop) - _released(loop)
        for node in ast.walk(loop):
            match node:
                case ast.AugAssign(target=ast.Name(total) | ast.Attribute(attr=total), op=ast.Add(), value=value):
                    pass
                case ast.Assign(
                    targets=[ast.Name(total)], value=ast.BinOp(left=ast.Name(again), op=ast.Add(), right=value)
                ) if again == total:
                    pass
                case ast.Expr(ast.Call(ast.Attribute(ast.Name(total), "append"), [value], [])):
                    pass
                case _:
                    continue
            if isinstance(value, ast.Name) and value.id in losses and total not in losses:
                yield Found(value, f"{total} keeps the graph of every {value.id} that goes into it")


def _released(loop: Loop) -> set[str]:
    """Names that are given a number, or a tensor without its graph, in the loop."""
    names = set[str]()
    for node in ast.walk(loop):
        if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call):
            called = node.value.func
            if isinstance(called, ast.Attribute) and called.attr in {"item", "detach", "tolist", "numpy"}:
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
            if isinstance(called, ast.Name) and called.id == "float":
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
    return names


RULE = Rule(
    code="H205",
    name="graph_kept",
    severity=Severity.SLOW,
    fix="add its .detach(): the number stays on the device, and the graph can go",
    safety=Safety.SAFE,
    check=check,
)
