"""An evaluation without no_grad().

What it finds: A loop over a loader that calls the model and never backward(), in a file that trains, where neither a
block, a decorator nor a caller switches gradients off.

Why it costs: Every call keeps its activations until its output is freed, as much memory as a training step's, and takes
time to record the graph. Where outputs are collected, all graphs stay.

When to ignore it: Where something needs gradients there, as an adversarial attack or a saliency map does.

Fix: Put the loop under `with torch.no_grad():`, or decorate its function with `@torch.no_grad()`.
`torch.inference_mode()` saves a little more, where its tensors are not used in training later.

Safety: Nothing is changed by itself: whether a caller needs the graph, only a person knows.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, SourceRule


def check(code: Code) -> Iterator[Found]:
    found = dict.fromkeys(each.call for each in code.evaluations.all if each.with_gradients)
    for call in found:
        yield Found(call, f"{ast.unparse(call.func)}(…) records a graph for each batch, and no backward() uses it")


RULE = SourceRule(
    code="H413",
    fix="put the evaluation under torch.no_grad() or torch.inference_mode()",
    check=check,
)
