"""synchronize() in every step.

What it finds: `torch.cuda.synchronize()` in every iteration of a training loop. The same holds for
`torch.mps`, `torch.xpu` and `torch.accelerator`.

Why it matters: A device executes queued work, so Python normally prepares the next step while the device
computes this one. A wait in every step prevents that, and the device then waits for Python.

Fix: Remove the call. To time a step, record events, and wait once after the loop.

    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    train_step(batch)
    end.record()
    torch.cuda.synchronize()  # once, after the loop
    print(start.elapsed_time(end), "ms")

When to ignore: The script only measures single steps.

Automatic fix: Unsafe. A clock that is read next to the call measures something else without it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Remove
from hasten.doctor.rule import Code, Found, Preserves, Safety, SourceRule

_WAITS = frozenset(f"torch.{name}.synchronize" for name in ("cuda", "mps", "xpu", "accelerator"))


def check(code: Code) -> Iterator[Found]:
    for step, call in code.training.called_every_turn():
        name = code.names.qualified(call.func)
        if name in _WAITS and step.updates:
            statement = code.names.parents[call]
            edits = (Remove(statement),) if isinstance(statement, ast.Expr) else ()
            yield Found(call, f"{ast.unparse(call)} every step waits for all queued work", edits=edits)


RULE = SourceRule(
    code="H306",
    fix="remove it; to time steps, use torch.cuda.Event(enable_timing=True) or time many at once",
    safety=Safety.UNSAFE,
    preserves=Preserves.BITS,
    gpu_only=True,
    check=check,
)
