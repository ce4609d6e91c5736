"""Emptying the allocator's cache in a loop.

What it finds: `torch.cuda.empty_cache()` in every turn of a training loop.

Why it costs: It waits for the device and gives memory back to the driver, which the next step asks for again: both are
slow, and the cache exists so that neither happens. It frees nothing that is in use.

When to ignore it: Where another process needs the memory at just that time.

Fix: Leave it out. Where memory is fragmented, `PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True` helps without waiting.

Safety: Safe: it computes nothing.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.code import Code
from hasten.doctor.contract import Found, Rule
from hasten.facts.finding import Safety, Severity


def check(code: Code) -> Iterator[Found]:
    for step in code.training.steps:
        for node in step.every_turn:
            if code.names.qualified(getattr(node, "func", None)) == "torch.cuda.empty_cache":
                yield Found(node, "the allocator's cache is emptied in every step")


RULE = Rule(
    code="H302",
    name="cache_emptied",
    severity=Severity.SLOW,
    fix="leave it out; where memory is fragmented, set PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
    safety=Safety.SAFE,
    technique="allocator",
    check=check,
)
