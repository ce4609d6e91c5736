"""A GradScaler with bfloat16.

What it finds: A `GradScaler` that scales a loss in a file whose autocasts are all of `torch.bfloat16`.

Why it costs: Scaling keeps small gradients from becoming zero in float16. bfloat16 has the range of float32 and needs
none. `scaler.step()` searches the gradients for infinities, waits for the device to read the answer, and skips steps.

When to ignore it: Where the same loop runs with float16 as well. Then give the scaler `enabled=`.

Fix: Remove the scaler: `loss.backward()` and `optimizer.step()`.

Safety: Nothing is changed by itself: all calls of the scaler have to go with it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.reading.names.argument_values import ABSENT, Unknown
from hasten.doctor.reading.steps.autocast_use import all_autocasts, argument, is_bfloat16, scalers
from hasten.doctor.rule import Code, Found, SourceRule


def check(code: Code) -> Iterator[Found]:
    autocasts = all_autocasts(code)
    scaled = {
        code.names.making(call.func.value) for call in code.methods("scale") if isinstance(call.func, ast.Attribute)
    }
    for scaler in scalers(code):
        is_used = scaler in scaled or None in scaled  # one that comes from elsewhere may be this
        if (
            is_used
            and autocasts
            and all(is_bfloat16(code, each) and _is_with(code, scaler, each) for each in autocasts)
        ):
            yield Found(scaler, "bfloat16 needs no scaling of the loss, and this scales it")


def _is_with(code: Code, scaler: ast.Call, autocast: ast.Call) -> bool:
    """Whether the scaler is on where the autocast is: by the same expression, if not always."""
    given = code.values.argument(scaler, "enabled")
    if given is ABSENT or (not isinstance(given, Unknown) and code.values.constant(given) is True):
        return True
    other = argument(code, autocast, "enabled")
    if isinstance(given, Unknown) or isinstance(other, Unknown):
        return False
    return ast.unparse(given) == ast.unparse(other)


RULE = SourceRule(
    code="H407",
    fix="remove the scaler: loss.backward(), optimizer.step()",
    check=check,
)
