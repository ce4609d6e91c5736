"""DataLoader without pinned memory.

What it finds: A DataLoader without `pin_memory`, whose training batches are copied to an accelerator.

Why it matters: The driver cannot copy pageable memory directly. It first copies each batch into a pinned
buffer, and the host waits for that.

Fix: Set `pin_memory=True`, and copy with `non_blocking=True`.

    loader = DataLoader(data, batch_size=64, pin_memory=True)
    for x, y in loader:
        x = x.to(device, non_blocking=True)

When to ignore: Batches are small, or host memory is short: pinned memory cannot be swapped out.

Automatic fix: Unsafe. Pinning raises an error if the data set yields tensors that are on a device already.
Without an accelerator, DataLoader only warns.
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
        message = f"{ast.unparse(loader.moves[0])} copies from pageable memory: DataLoader without pin_memory"
        yield Found(loader.call, message, edits=(AddArgument(loader.call, "pin_memory=True"),))


def _is_on_device(code: Code, loader: Loader) -> bool:
    """Whether its data set holds tensors that are on a device already: those cannot be pinned."""
    given = [each for source in loader.sources if isinstance(source.making, ast.Call) for each in source.making.args]
    return any(code.tensors.kind(each) in {Tensor.DEVICE, Tensor.ATTACHED} for each in given)


RULE = SourceRule(
    code="H102",
    fix="pass pin_memory=True",
    safety=Safety.UNSAFE,
    technique="pin_memory",
    gpu_only=True,
    check=check,
)
