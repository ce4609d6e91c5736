"""DataParallel.

What it finds: `torch.nn.DataParallel(model)`.

Why it costs: One process drives all devices by threads, copies the model to each in every step, and gathers all outputs
on the first. DistributedDataParallel has one process per device and sums gradients during the backward pass.

When to ignore it: Where a script cannot be started by torchrun.

Fix: Start a process for each device with torchrun, and wrap the model in DistributedDataParallel.

Safety: Nothing is changed by itself: the script has to be started differently.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, SourceRule


def check(code: Code) -> Iterator[Found]:
    for call in code.calls_to("torch.nn.parallel.DataParallel"):
        yield Found(call, "one process drives all devices, and copies the model to each in every step")


RULE = SourceRule(
    code="H501",
    fix="use DistributedDataParallel, with a process for each device: torchrun --nproc-per-node …",
    check=check,
)
