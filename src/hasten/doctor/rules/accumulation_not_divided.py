"""Accumulation whose loss is not divided by the number of batches.

What it finds: A loop that steps the optimizer every n-th batch and calls `backward()` on a mean loss that is neither
divided by n nor weighted in another way.

Why it costs: The summed gradient is n times the mean of one large batch. So the learning rate is in effect n times as
high, and clipping cuts more than it should.

When to ignore it: Where the sum is meant, as for a loss that is itself a sum over samples.

Fix: Divide the loss by n before `backward()`: `(loss / n).backward()`.

Safety: Unsafe: updates become smaller by n, so a learning rate that was tuned without the division must be tuned again.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Edit, Replace
from hasten.doctor.reading.steps.accumulation_windows import Window
from hasten.doctor.reading.steps.loss_weights import Weights, loss_of
from hasten.doctor.reading.steps.optimizer_events import Action
from hasten.doctor.rule import Code, Found, Safety, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    for window in code.windows.all:
        if window.turn.of(Action.REWRITE, Action.TOUCH) or _rate_allows_for_it(code, window):
            continue
        weights = Weights(code.names, code.values, code.tensors, window.every)
        losses = {each.node: loss_of(each.node) for each in window.backwards}
        if not all(weights.is_mean_of_batch(each) for each in losses.values()):
            continue
        for node, loss in losses.items():
            if loss is not None:
                every = ast.unparse(window.every)
                message = f"{ast.unparse(loss)} is added up over {every} batches, and not divided by {every}"
                yield Found(node, message, edits=_edits(code, window, loss))


def _rate_allows_for_it(code: Code, window: Window) -> bool:
    """Whether the optimizer is made with the number of batches in view."""
    making = code.names.making(window.update.target)
    every = ast.unparse(window.every)
    return making is not None and any(ast.unparse(each) == every for each in ast.walk(making))


def _edits(code: Code, window: Window, loss: ast.expr) -> tuple[Edit, ...]:
    """Where the condition is in the same function, and counts with a name or number that is valid there."""
    near = code.scopes.of(loss) is code.scopes.of(window.every) and isinstance(window.every, ast.Name | ast.Constant)
    if not near or not isinstance(loss, ast.Name):
        return ()
    text = f"{ast.unparse(loss)} / {ast.unparse(window.every)}"
    parent = code.names.parents[loss]
    return (Replace(loss, f"({text})" if isinstance(parent, ast.Attribute) else text),)


RULE = SourceRule(
    code="H409",
    severity=Severity.WRONG,
    fix="divide the loss by it before backward()",
    safety=Safety.UNSAFE,
    technique="accumulation",
    check=check,
)
