"""Activations that are most of the memory.

What it finds: Models whose activations are more than half of the memory at the step's peak, where the peak is more than
half of the device's memory.

Why it costs: Activations grow with the batch and limit its size. Near the limit, an accelerator's allocator retries and
releases memory, which waits for the device.

When to ignore it: Where the batch is as large as it should be, and fits.

Fix: Plan `precision`, which halves most of them in bf16, or `activation_checkpointing`.

Safety: Nothing is changed by itself.
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
        yield FoundInModel(None, f"activations are {share:.0f} % of the peak of {peak}; most in {largest.name}")


RULE = ModelRule(
    code="H605",
    fix="plan precision, or activation_checkpointing",
    technique="activation_checkpointing",
    check=check,
)
