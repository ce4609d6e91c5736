"""Outputs that are collected with their graphs.

What it finds: A list that outlives the step and gets an output in each step, without `detach()`, `cpu()` or `item()`.

Why it costs: Each output keeps its graph. Memory grows with every step as long as the list lives.

When to ignore it: Where a later backward pass goes through what was kept.

Fix: Append `output.detach()`, or `output.detach().cpu()` where the device's memory is short.

Safety: Unsafe: the list holds the same values, but they have no gradient any more.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Append
from hasten.doctor.reading.objects.single_tensors import Single
from hasten.doctor.rule import Code, Found, Safety, SourceRule


def check(code: Code) -> Iterator[Found]:
    single = Single(code.names)
    for step in code.training.steps:
        for kept in code.accumulated.of_step(step):
            is_output = code.tensors.is_attached(kept.value) and not code.tensors.is_loss(kept.value)
            if is_output and not kept.is_sum:
                message = f"{ast.unparse(kept.total)} keeps the graph of every {ast.unparse(kept.value)} in it"
                edits = (Append(kept.value, ".detach()"),) if single.is_tensor(kept.value) else ()
                yield Found(kept.value, message, edits=edits)


RULE = SourceRule(
    code="H206",
    fix="append its .detach()",
    safety=Safety.UNSAFE,
    check=check,
)
