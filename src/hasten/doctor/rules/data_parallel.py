"""DataParallel.

What it finds: `torch.nn.DataParallel(model)`.

Why it costs: One process drives all devices by threads, copies the model to each in every step, and gathers all outputs
on the first. DistributedDataParallel has a process for each device, and sums gradients while the backward pass still
runs.

When to ignore it: Where a script cannot be started by torchrun.

Fix: Start a process for each device with torchrun, and wrap the model in DistributedDataParallel.

Safety: Nothing is changed by itself: the script has to be started differently.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.contract import Found, Rule
from hasten.doctor.reading.code import Code
from hasten.facts.finding import Severity


def check(code: Code) -> Iterator[Found]:
    for call in code.calls_to("torch.nn.parallel.DataParallel"):
        yield Found(call, "one process drives all devices, and copies the model to each in every step")


RULE = Rule(
    code="H501",
    name="data_parallel",
    severity=Severity.SLOW,
    fix="use DistributedDataParallel, with a process for each device: torchrun --nproc-per-node …",
    check=check,
)
