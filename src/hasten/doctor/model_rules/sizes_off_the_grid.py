"""A size that the hardware's multiply units do not divide.

What it finds: Layers with at least a twentieth of the step's counted arithmetic, one of whose sizes is no multiple of
what the device multiplies at a time: 8 numbers of 16 bits or 4 of TF32 for tensor cores
(https://docs.nvidia.com/deeplearning/performance/dl-performance-matrix-multiplication), and the 16 float32 numbers of a
512-bit vector, or 32 of 16 bits, on a CPU. Sizes that the data gives, such as three colours, are skipped.

Why it costs: What is left over at the edge is computed by slower kernels, or with units that idle.

When to ignore it: Where the size carries a meaning. How much it costs depends on the library's kernels, so compare both
sizes with `hasten tune` before you believe it.

Fix: Pad the size to the next multiple, as vocabularies are padded.

Safety: Nothing is changed by itself: it is another model.
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
        large = [each for each in layer.sizes if each[0] != "num_embeddings" and each[1] >= _FEWEST]  # not looked up
        odd = [(name, size) for name, size in large if size % grid]
        if odd and layer.flops_share >= MUCH:
            sizes = " and ".join(f"{name} {size}" for name, size in odd)
            pad = ", ".join(f"{name} to {grid * math.ceil(size / grid)}" for name, size in odd)
            share = f"{100 * layer.flops_share:.0f} % of the arithmetic"
            message = f"{layer.name} ({layer.kind}, {share}) has {sizes}: no multiple of {grid}"
            yield FoundInModel(layer, message, f"pad {pad}")


def grid_of(device: str, precision: str) -> int:
    """How many numbers the device multiplies at a time."""
    wide = precision in {"bfloat16", "float16"}
    if device.startswith("cuda"):
        return 8 if wide else 4
    return 32 if wide else 16


RULE = ModelRule(
    code="H604",
    fix="pad it to the next multiple",
    check=check,
)
