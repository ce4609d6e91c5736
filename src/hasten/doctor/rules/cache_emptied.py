"""empty_cache() in every step.

What it finds: `torch.cuda.empty_cache()` in every iteration of a training loop. The same holds for
`torch.mps` and `torch.xpu`.

Why it matters: The call waits for the device. It releases cached memory that the next step allocates again.
It frees no memory that is in use.

Fix: Remove the call. If memory is fragmented, start the program with this setting instead.

    PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True python train.py

When to ignore: Another process on the same device needs the memory at that moment.

Automatic fix: Unsafe. If memory is nearly full or fragmented, the next step may run out of memory.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Remove
from hasten.doctor.rule import Code, Found, Preserves, Safety, Severity, SourceRule

_EMPTY = frozenset({"torch.cuda.empty_cache", "torch.mps.empty_cache", "torch.xpu.empty_cache"})


def check(code: Code) -> Iterator[Found]:
    for _, call in code.training.called_every_turn():
        if code.names.qualified(call.func) in _EMPTY:
            statement = code.names.parents[call]
            edits = (Remove(statement),) if isinstance(statement, ast.Expr) else ()
            message = f"{ast.unparse(call)} every step waits for the device and frees memory the next step needs"
            yield Found(call, message, edits=edits)


RULE = SourceRule(
    code="H302",
    severity=Severity.COSTLY,
    fix="remove it; if memory is fragmented, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    safety=Safety.UNSAFE,
    preserves=Preserves.BITS,
    technique="allocator",
    gpu_only=True,
    check=check,
)
