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

from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.steps.autocast_use import all_autocasts, is_bfloat16
from hasten.doctor.rule import Code, Found, SourceRule

_SCALERS = tuple(f"torch.{name}.GradScaler" for name in ("amp", "cuda.amp", "cpu.amp"))


def check(code: Code) -> Iterator[Found]:
    autocasts = all_autocasts(code)
    calls = [call.func for call in code.methods("scale") if isinstance(call.func, ast.Attribute)]
    scaled = {code.names.making(each.value) for each in calls}  # None of one that comes from elsewhere, and may be this
    for scaler in code.calls_to(*_SCALERS) if autocasts and all(is_bfloat16(code, each) for each in autocasts) else ():
        is_on = code.values.constant_argument(scaler, "enabled") in {ABSENT, True}
        if is_on and scaled & {scaler, None}:
            yield Found(scaler, "bfloat16 needs no scaling of the loss, and this scales it")


RULE = SourceRule(
    code="H407",
    fix="remove the scaler: loss.backward(), optimizer.step()",
    check=check,
)
