"""backward() under autocast.

What it finds: `loss.backward()` inside `with torch.autocast(…)`, also through a function that is called
there.

Why it matters: Autocast is for the forward pass and the loss. Backward operations use the dtypes of their
forward operations anyway. PyTorch's documentation advises against autocast around `backward()`, as gradients
can be cast wrongly.

Fix: End the `with` block after the loss.

    with torch.autocast("cuda", dtype=torch.bfloat16):
        loss = criterion(model(x), y)
    loss.backward()

When to ignore: A hook or a custom function is meant to compute under autocast.

Automatic fix: None. Only you know where the block should end.
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
            message = f"{ast.unparse(call)} runs under {ast.unparse(autocast.func)}, meant for forward and loss only"
            yield Found(call, message)


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
    fix="end the autocast block after the loss, before backward()",
    check=check,
)
