"""An optimizer that is not fused.

What it finds: SGD, Adam, AdamW and Adagrad without `fused=True`, in a file that trains on an accelerator.

Why it costs: The default reads and writes each parameter in several kernels. The fused one does so once.

When to ignore it: Where gradients are sparse, or the installed torch has no fused form for the device or dtype.

Fix: Add `fused=True`.

Safety: Unsafe: it rounds differently, and raises an error where torch has no fused form for the device.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.rule import Code, Found, Safety, SourceRule

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
        yield Found(call, f"{ast.unparse(call.func)} takes several kernels for a step", edits=edits)


def _has_sparse_gradients(code: Code) -> bool:
    embeddings = code.calls_to("torch.nn.Embedding", "torch.nn.EmbeddingBag")
    return any(code.values.constant_argument(each, "sparse") not in {ABSENT, False} for each in embeddings)


RULE = SourceRule(
    code="H307",
    fix="add fused=True",
    safety=Safety.UNSAFE,
    technique="fused_optimizer",
    check=check,
)
