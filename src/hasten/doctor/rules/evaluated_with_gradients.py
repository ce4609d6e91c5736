"""An evaluation without no_grad().

What it finds: A loop over the batches of a loader that calls the model and never calls backward(), in a file that
trains, where neither a block, a decorator nor a caller switches gradients off.

Why it costs: Every call keeps its activations until its output is gone, though nothing will use them. That is memory of
the size of a training step's, and the time to record the graph. Where outputs are collected, all their graphs stay.

When to ignore it: Where something needs gradients there: of the inputs, say, as an attack or a saliency map does.

Fix: Put the loop under `with torch.no_grad():`, or decorate its function with `@torch.no_grad()`.
`torch.inference_mode()` saves a little more, where its tensors are not used in training later.

Safety: Nothing is changed by itself: whether a caller needs the graph, only a person knows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    found = dict.fromkeys(each.call for each in code.evaluations.all if each.with_gradients)
    for call in found:
        yield Found(call, f"{ast.unparse(call.func)}(…) records a graph for each batch, and no backward() uses it")


RULE = SourceRule(
    code="H413",
    severity=Severity.SLOW,
    fix="put the evaluation under torch.no_grad() or torch.inference_mode()",
    check=check,
)
