"""Emptying the allocator's cache in a loop.

What it finds: `torch.cuda.empty_cache()` in every turn of a training loop.

Why it costs: It waits for the device and returns memory that the next step requests again. It frees nothing in use.

When to ignore it: Where another process needs the memory at just that time.

Fix: Remove it. Where memory is fragmented, `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` helps without waiting.

Safety: Unsafe: where memory is nearly full or fragmented, the next step may not fit.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Remove
from hasten.doctor.rule import Code, Found, Safety, SourceRule

_EMPTY = frozenset({"torch.cuda.empty_cache", "torch.mps.empty_cache", "torch.xpu.empty_cache"})


def check(code: Code) -> Iterator[Found]:
    for _, call in code.training.called_every_turn():
        if code.names.qualified(call.func) in _EMPTY:
            statement = code.names.parents[call]
            edits = (Remove(statement),) if isinstance(statement, ast.Expr) else ()
            yield Found(call, f"{ast.unparse(call)} empties the allocator's cache in every step", edits=edits)


RULE = SourceRule(
    code="H302",
    fix="remove it; where memory is fragmented, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    safety=Safety.UNSAFE,
    technique="allocator",
    check=check,
)
