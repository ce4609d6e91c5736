"""GradScaler with bfloat16.

What it finds: A `GradScaler` that scales a loss, in a file whose autocasts are all bfloat16.

Why it matters: Scaling keeps small float16 gradients from becoming zero. bfloat16 has the range of float32
and does not need it. `scaler.step()` still checks all gradients for infinities, waits for the device to read
the result, and skips steps.

Fix: Remove the scaler.

    loss.backward()
    optimizer.step()

When to ignore: The same loop also runs in float16. Then pass the scaler `enabled=`.

Automatic fix: None. All calls of the scaler have to change together.
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
            yield Found(scaler, "GradScaler is not needed with bfloat16, and checks every gradient for infinities")


RULE = SourceRule(
    code="H407",
    fix="remove the scaler: call loss.backward() and optimizer.step()",
    check=check,
)
