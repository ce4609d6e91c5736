"""List of outputs that keeps every graph.

What it finds: A list that outlives the step and gets a model output in each step, without `detach()` or
`item()`. `.cpu()` alone keeps the graph too, but is not reported.

Why it matters: Each output keeps its autograd graph. Memory grows with every step while the list exists.

Fix: Append the detached output, and copy it to the host if the device is short of memory.

    outputs.append(output.detach())
    outputs.append(output.detach().cpu())  # waits for the device

When to ignore: A later `backward()` needs the stored graphs.

Automatic fix: Unsafe. The list holds the same values, but gradients no longer flow through them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import Append
from hasten.doctor.reading.objects.single_tensors import Single
from hasten.doctor.rule import Code, Found, Preserves, Safety, SourceRule


def check(code: Code) -> Iterator[Found]:
    single = Single(code.names)
    for step in code.training.steps:
        for kept in code.accumulated.of_step(step):
            is_output = code.tensors.is_attached(kept.value) and not code.tensors.is_loss(kept.value)
            if is_output and not kept.is_sum:
                total, value = ast.unparse(kept.total), ast.unparse(kept.value)
                message = f"{total} keeps the graph of every {value}: memory grows each step"
                edits = (Append(kept.value, ".detach()"),) if single.is_tensor(kept.value) else ()
                yield Found(kept.value, message, edits=edits)


RULE = SourceRule(
    code="H206",
    fix="append its .detach(), or .detach().cpu() to save device memory",
    safety=Safety.UNSAFE,
    preserves=Preserves.BITS,
    check=check,
)
