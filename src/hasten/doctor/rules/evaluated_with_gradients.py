"""Evaluation without no_grad().

What it finds: A loop or a comprehension over a loader, in a file that trains, that calls the model and never
`backward()`. No block, decorator or caller switches gradients off.

Why it matters: Each call records the autograd graph, which takes time. It keeps the activations until its
output is freed, as much memory as a training step. If outputs are collected, all graphs stay in memory.

Fix: Evaluate under `torch.no_grad()`. `torch.inference_mode()` saves a little more, but its tensors cannot be
used in training later.

    @torch.no_grad()
    def evaluate(model, loader):
        model.eval()
        for x, y in loader:
            ...

When to ignore: The evaluation needs gradients, for example an adversarial attack or a saliency map.

Automatic fix: None. Only you know whether a caller needs the graph.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, Part, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    found = dict.fromkeys(each.call for each in code.evaluations.all if each.with_gradients)
    for call in found:
        message = f"{ast.unparse(call.func)}(…) records an autograd graph for each batch, and no backward() uses it"
        yield Found(call, message)


RULE = SourceRule(
    code="H413",
    severity=Severity.SLIGHT,
    fix="evaluate under torch.no_grad() or torch.inference_mode()",
    part=Part.TURN,
    check=check,
)
