"""Optimizer without fused=True.

What it finds: SGD, Adam, AdamW and Adagrad without `fused=True`, in a file that trains on an accelerator.

Why it matters: The default implementation reads and writes every parameter in several kernels. The fused
kernel does it once.

Fix: Pass `fused=True`.

    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, fused=True)

When to ignore: Gradients are sparse, or your version of torch has no fused implementation for the device or
dtype. On a CPU it helps with many small parameters, and not with a few large ones. `hasten tune` rejects it where its
updates differ from those of the default implementation by more than rounding.

Automatic fix: Unsafe. The fused kernel rounds differently. It raises an error where torch does not support
it.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.rule import Code, Found, Part, Safety, SourceRule

_FUSED = tuple(f"torch.optim.{name}" for name in ("SGD", "Adam", "AdamW", "Adagrad"))
_CHOICES = ("fused", "foreach", "capturable", "differentiable")


def check(code: Code) -> Iterator[Found]:
    if not code.devices.accelerated or not code.training.steps or _has_sparse_gradients(code):
        return
    for call in code.calls_to(*_FUSED):
        given = {name: code.values.constant_argument(call, name) for name in _CHOICES}
        if any(value is not ABSENT and value is not None and value is not False for value in given.values()):
            continue
        edits = (AddArgument(call, "fused=True"),) if all(value is ABSENT for value in given.values()) else ()
        message = f"{ast.unparse(call.func)} without fused=True reads and writes each parameter several times"
        yield Found(call, message, edits=edits)


def _has_sparse_gradients(code: Code) -> bool:
    embeddings = code.calls_to("torch.nn.Embedding", "torch.nn.EmbeddingBag")
    return any(code.values.constant_argument(each, "sparse") not in {ABSENT, False} for each in embeddings)


RULE = SourceRule(
    code="H307",
    fix="pass fused=True",
    safety=Safety.UNSAFE,
    technique="fused_optimizer",
    part=Part.OPTIMIZER,
    check=check,
)
