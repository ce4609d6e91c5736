"""A backward pass under autocast.

What it finds: `loss.backward()` inside `with torch.autocast(…)`, also where the function that calls it is called there.

Why it costs: Autocast is for the forward pass and the loss: backward operations run in the dtypes of the forward ones
anyway. PyTorch's documentation does not recommend it around `backward()`, where gradients can be cast wrongly.

When to ignore it: Where a hook or a custom function is meant to compute under autocast.

Fix: End the `with` after the loss, so that `backward()` is outside of it.

Safety: Nothing is changed by itself: where the block should end, only a person knows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.scopes import Function
from hasten.doctor.reading.steps.autocast_use import entered_by, is_on
from hasten.doctor.rule import Code, Found, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    ran = [each for step in code.training.steps for each in step.ran]
    for call in code.training.backwards:
        through = [[outer for outer, _ in reversed(each.around)] for each in ran if each.node is call]
        found = [_nearest(code, around) for around in ([*_lexical(code, call)], *through)]
        autocast = next(filter(None, found), None)
        if autocast is not None and is_on(code, autocast):
            yield Found(call, f"{ast.unparse(call)} runs under {ast.unparse(autocast.func)}")


def _nearest(code: Code, around: list[ast.AST]) -> ast.Call | None:
    """around: the innermost first."""
    return next((call for each in around for call in entered_by(code, each)), None)


def _lexical(code: Code, node: ast.AST) -> Iterator[ast.AST]:
    """What it lies in, its function included."""
    for each in code.names.around(node):
        yield each
        if isinstance(each, Function):
            return


RULE = SourceRule(
    code="H406",
    severity=Severity.WRONG,
    fix="end the block of autocast after the loss, before backward()",
    check=check,
)
