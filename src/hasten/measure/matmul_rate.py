"""How fast this device multiplies matrices in one dtype, and what share of that a training step reaches.

A data sheet's peak is never reached. The best rate that a plain square product sustains here, with this library and
these threads, is the yardstick. Several sizes are tried, because a small product does not fill a device and a large one
leaves its caches; the best size counts. torch.utils.benchmark takes the times.

Model FLOPs utilization is the arithmetic that the model needs, over what the device could have done in the same time
(Chowdhery et al. 2022, arXiv:2204.02311, appendix B; there against the data sheet's peak).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch.utils.benchmark import Timer

_SIZES = {"cpu": (512, 768, 1024, 1536), "cuda": (2048, 4096, 8192)}
_STRETCHES = 7
_STRETCH_SECONDS = 0.03
_SLOW_SECONDS = 0.3  # a size whose product takes as long is the last


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixRate:
    """Of the best size: the median over its stretches, with the slowest and the fastest of them."""

    flops_per_second: float
    slowest: float
    fastest: float
    stretches: int
    size: int  # rows and columns of each square matrix
    dtype: str


def measure_matrix_rate(
    dtype: torch.dtype, device: torch.device | str = "cpu", sizes: Sequence[int] | None = None
) -> MatrixRate:
    """Measures for about a second where a product of the smallest size is quick.

    On a GPU, float32 is measured as torch.set_float32_matmul_precision has it. Raises torch's own error when the device
    cannot multiply in this dtype.
    """
    device = torch.device(device)
    found = list[MatrixRate]()
    for size in sizes or _SIZES.get(device.type, _SIZES["cuda"]):
        found.append(_rate_of(size, dtype, device))
        if 2 * size**3 / found[-1].flops_per_second > _SLOW_SECONDS:
            break
    return max(found, key=lambda rate: rate.flops_per_second)


def _rate_of(size: int, dtype: torch.dtype, device: torch.device) -> MatrixRate:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
    given = {"mm": torch.mm, "left": left, "right": right, "out": torch.empty_like(left)}
    timer = Timer("mm(left, right, out=out)", globals=given, num_threads=torch.get_num_threads())
    once = min(timer.timeit(1).median for _ in range(2))  # the first pays for what the library sets up
    products = max(1, round(_STRETCH_SECONDS / once))
    rates = [2 * size**3 / timer.timeit(products).median for _ in range(1 if once > _SLOW_SECONDS else _STRETCHES)]
    return MatrixRate(
        flops_per_second=median(rates),
        slowest=min(rates),
        fastest=max(rates),
        stretches=len(rates),
        size=size,
        dtype=str(dtype).removeprefix("torch."),
    )
