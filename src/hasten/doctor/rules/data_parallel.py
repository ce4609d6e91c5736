"""DataParallel instead of DistributedDataParallel.

What it finds: `torch.nn.DataParallel(model)`.

Why it matters: One process drives all devices with threads. In every step it copies the model to each device
and gathers all outputs on the first. DistributedDataParallel runs one process per device and averages
gradients during the backward pass.

Fix: Wrap the model in DistributedDataParallel, and start the script with `torchrun --nproc-per-node=4
train.py`.

    torch.distributed.init_process_group()
    device = int(os.environ["LOCAL_RANK"])
    model = DistributedDataParallel(model.to(device), device_ids=[device])

When to ignore: The script cannot be started by torchrun.

Automatic fix: None. The script has to be started differently.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import Code, Found, Severity, SourceRule


def check(code: Code) -> Iterator[Found]:
    for call in code.calls_to("torch.nn.parallel.DataParallel"):
        yield Found(call, "DataParallel drives all devices from one process and copies the model to each in every step")


RULE = SourceRule(
    code="H501",
    severity=Severity.COSTLY,
    fix="use DistributedDataParallel with one process per device: torchrun --nproc-per-node=4 train.py",
    gpu_only=True,
    check=check,
)
