"""How fast this device multiplies matrices in one dtype, and what share of that a training step reaches.

A data sheet's peak is never reached. The best rate that a plain square product sustains here, with this library and
these threads, is the yardstick. Several sizes are tried, because a small product does not fill a device and a large one
leaves its caches. The rate of a size is the median of several timed stretches; the best size counts.

Model FLOPs utilization is the arithmetic that the model needs, over what the device could have done in the same time
(Chowdhery et al. 2022, arXiv:2204.02311, appendix B; there against the data sheet's peak).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

import torch

from hasten.errors import InvalidMeasurement

_SIZES = {"cpu": (512, 768, 1024, 1536), "cuda": (2048, 4096, 8192)}
_STRETCHES = 7
_LEAST_STRETCHES = 3
_STRETCH_SECONDS = 0.03
_BUDGET_SECONDS = 1.5  # then a size gets its least number of stretches, and no larger size starts


@dataclass(frozen=True, kw_only=True, slots=True)
class MatrixRate:
    """Of the best size: the median over its stretches, with the slowest and the fastest of them."""

    flops_per_second: float
    slowest: float
    fastest: float
    stretches: int
    size: int  # rows and columns of each square matrix
    dtype: str
    device: str
    threads: int | None  # of a CPU; None elsewhere


def measure_matrix_rate(
    dtype: torch.dtype, device: torch.device | str = "cpu", sizes: Sequence[int] | None = None
) -> MatrixRate:
    """Measures for less than two seconds where a product of the smallest size is quick.

    On a GPU, float32 is measured as torch.set_float32_matmul_precision has it. Raises InvalidMeasurement when `sizes`
    is empty; torch's own error when the device cannot multiply in this dtype.
    """
    device = torch.device(device)
    candidates = sorted(_SIZES.get(device.type, _SIZES["cuda"]) if sizes is None else sizes)
    if not candidates:
        raise InvalidMeasurement("no matrix size is given", fix="give sizes such as (1024, 2048), or leave them out")
    ends = time.perf_counter() + _BUDGET_SECONDS
    best: MatrixRate | None = None
    for size in candidates:
        # Two products to set up and one a stretch are the least that a size needs.
        if best and time.perf_counter() + (2 + _LEAST_STRETCHES) * _flops(size) / best.flops_per_second > ends:
            break
        rate = _rate_of(size, dtype, device, ends)
        best = rate if best is None or rate.flops_per_second > best.flops_per_second else best
    assert best is not None  # there was a candidate
    return best


def model_flops_utilization(*, flops_per_sample: float, samples_per_second: float, rate: MatrixRate) -> float:
    """The share of the measured matrix rate that training reaches.

    A value above 1 means that `rate` was measured in another dtype, or that work was counted that never ran.
    Raises InvalidMeasurement when an input is not a positive finite number.
    """
    inputs = {
        "flops_per_sample": flops_per_sample,
        "samples_per_second": samples_per_second,
        "rate.flops_per_second": rate.flops_per_second,
    }
    for name, number in inputs.items():
        if not 0 < number < float("inf"):
            raise InvalidMeasurement(f"{name} is {number}", fix="give a positive number, as it was measured")
    return flops_per_sample * samples_per_second / rate.flops_per_second


def _rate_of(size: int, dtype: torch.dtype, device: torch.device, ends: float) -> MatrixRate:
    generator = torch.Generator().manual_seed(0)
    left, right = (torch.randn(size, size, generator=generator).to(device, dtype) for _ in range(2))
    out = torch.empty_like(left)
    once = min(_seconds(left, right, out, 1) for _ in range(2))  # the first pays for what the library sets up
    products = max(1, round(_STRETCH_SECONDS / once))
    rates = [products * _flops(size) / _seconds(left, right, out, products)]
    while len(rates) < _LEAST_STRETCHES or (len(rates) < _STRETCHES and time.perf_counter() < ends):
        rates.append(products * _flops(size) / _seconds(left, right, out, products))
    return MatrixRate(
        flops_per_second=median(rates),
        slowest=min(rates),
        fastest=max(rates),
        stretches=len(rates),
        size=size,
        dtype=str(dtype).removeprefix("torch."),
        device=str(device),
        threads=torch.get_num_threads() if device.type == "cpu" else None,
    )


def _seconds(left: torch.Tensor, right: torch.Tensor, out: torch.Tensor, products: int) -> float:
    _wait_for(left.device)
    begin = time.perf_counter()
    for _ in range(products):
        torch.mm(left, right, out=out)
    _wait_for(left.device)
    return time.perf_counter() - begin


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _flops(size: int) -> int:
    return 2 * size**3
