"""Batches copied to the device from memory that is not pinned.

What it finds: A DataLoader without `pin_memory`, whose training batches are moved to an accelerator.

Why it costs: The driver first copies each batch into pinned memory, and the host waits for that.

When to ignore it: Where batches are small, or memory is short: pinned memory cannot be swapped out.

Fix: Give `pin_memory=True`, and move batches with `non_blocking=True`.

Safety: Unsafe: a data set that yields tensors on a device raises. Without an accelerator it only warns.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.edits import AddArgument
from hasten.doctor.reading.names.argument_values import ABSENT
from hasten.doctor.reading.objects.data_loaders import Loader
from hasten.doctor.reading.objects.tensor_kinds import Tensor
from hasten.doctor.rule import Code, Found, Safety, SourceRule


def check(code: Code) -> Iterator[Found]:
    if any(code.calls_to("torch.set_default_device", "torch.set_default_tensor_type")):
        return  # what is made on a device cannot be pinned
    for loader in code.loaders:
        if loader.argument("pin_memory") is not ABSENT or not loader.steps or not loader.moves:
            continue
        if code.loading.collates_to_device(loader) or _is_on_device(code, loader):
            continue
        message = f"{ast.unparse(loader.moves[0])} copies from memory that is not pinned"
        yield Found(loader.call, message, edits=(AddArgument(loader.call, "pin_memory=True"),))


def _is_on_device(code: Code, loader: Loader) -> bool:
    """Whether its data set holds tensors that are on a device already: those cannot be pinned."""
    given = [each for source in loader.sources if isinstance(source.making, ast.Call) for each in source.making.args]
    return any(code.tensors.kind(each) in {Tensor.DEVICE, Tensor.ATTACHED} for each in given)


RULE = SourceRule(
    code="H102",
    fix="give pin_memory=True",
    safety=Safety.UNSAFE,
    technique="pin_memory",
    check=check,
)
