"""DataParallel.

What it finds: `torch.nn.DataParallel(model)`.

Why it costs: One process drives all devices by threads, copies the model to each in every step, and gathers all outputs
on the first. DistributedDataParallel has one process per device and sums gradients during the backward pass.

When to ignore it: Where a script cannot be started by torchrun.

Fix: Start a process for each device with torchrun, and wrap the model in DistributedDataParallel.

Safety: Nothing is changed by itself: the script has to be started differently.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    for call in code.calls_to("torch.nn.parallel.DataParallel"):
        devices = code.values.argument(call, "device_ids", 1)
        is_one = isinstance(devices, ast.List | ast.Tuple) and len(devices.elts) == 1
        if not is_one:  # one device is driven as by the model alone
            yield Found(call, "one process drives all devices, and copies the model to each in every step")


RULE = SourceRule(
    code="H501",
    severity=Severity.SLOW,
    fix="use DistributedDataParallel, with a process for each device: torchrun --nproc-per-node …",
    check=check,
)
