"""Activations fill most of the memory.

What it finds: A model whose activations take more than half of the memory at the peak of a step, where this
peak is more than half of the device's memory.

Why it matters: Activations grow with the batch and limit its size. Near the limit, an accelerator's allocator
releases cached memory and retries, which waits for the device.

Fix: Add `precision` to the plan: bf16 halves most activations. Or add `activation_checkpointing`.

When to ignore: The batch fits and does not need to be larger.

Automatic fix: None.
"""

from __future__ import annotations

from collections.abc import Iterator

from hasten.doctor.rule import FoundInModel, ModelProfile, ModelRule
from hasten.facts.formatting import byte_size

MUCH = 0.5  # of the peak, and of the device


def check(profile: ModelProfile) -> Iterator[FoundInModel]:
    if profile.activation_bytes > MUCH * profile.peak_bytes and profile.peak_bytes > MUCH * profile.memory_bytes:
        largest = max(profile.layers, key=lambda layer: layer.activation_bytes)
        share = 100 * profile.activation_bytes / profile.peak_bytes
        peak = byte_size(profile.peak_bytes)
        yield FoundInModel(None, f"activations take {share:.0f} % of the peak memory of {peak}, most in {largest.name}")


RULE = ModelRule(
    code="H605",
    fix="add precision or activation_checkpointing to the plan",
    technique="activation_checkpointing",
    check=check,
)
