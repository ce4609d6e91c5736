"""Layer size that does not fit the hardware.

What it finds: A layer with at least 5 % of the step's counted arithmetic, one of whose sizes is not a
multiple of what the device multiplies at once. That is 8 values of 16 bits or 4 values in TF32 for tensor
cores (https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication). On a CPU with
512-bit vectors it is 16 float32 values or 32 values of 16 bits. Sizes below 32 are skipped, as they often
come from the data.

Why it matters: The remainder at the edge runs in slower kernels, or leaves units idle.

Fix: Pad the size to the next multiple, as is common for vocabularies.

    head = nn.Linear(768, 50304)  # instead of 50257

When to ignore: The size has a meaning. The cost depends on the library's kernels, so measure both sizes
before you change the model.

Automatic fix: None. The model would be another one.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

from hasten.doctor.rule import FoundInModel, ModelProfile, ModelRule

MUCH = 0.05  # of the step's counted arithmetic
_FEWEST = 32  # a smaller size is given by the data, or too small for its edge to be the trouble


def check(profile: ModelProfile) -> Iterator[FoundInModel]:
    grid = grid_of(profile.device, profile.precision)
    for layer in profile.layers:
        large = [each for each in layer.sizes if each[0] != "num_embeddings" and each[1] >= _FEWEST]  # not multiplied
        odd = [(name, size) for name, size in large if size % grid]
        if odd and layer.flops_share >= MUCH:
            sizes = " and ".join(f"{name} {size}" for name, size in odd)
            pad = ", ".join(f"{name} to {grid * math.ceil(size / grid)}" for name, size in odd)
            share = f"{100 * layer.flops_share:.0f} % of the arithmetic"
            message = f"{layer.name} ({layer.kind}, {share}) has {sizes}, not a multiple of {grid}"
            yield FoundInModel(layer, message, f"pad {pad}")


def grid_of(device: str, precision: str) -> int:
    """How many numbers the device multiplies at a time."""
    wide = precision in {"bfloat16", "float16"}
    if device.startswith("cuda"):
        return 8 if wide else 4
    return 32 if wide else 16


RULE = ModelRule(
    code="H604",
    fix="pad the size to the next multiple",
    check=check,
)
