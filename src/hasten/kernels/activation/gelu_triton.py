"""GELU in Triton: one pass over memory forward, one backward.

It is imported when a tensor on an accelerator is met and Triton is installed; gelu.py describes the formula. A program
of the grid takes 1024 numbers, eight for each thread, so that 16-bit dtypes are read 16 bytes at a time. Everything is
computed in float32. Φ(x) is ½ (1 + erf(x/√2)), exact to half a unit of 1. For x below -4, where Φ is nearly 0, that
loses relative precision, which the fit in gelu.h keeps.

Source: Tillet, Kung and Cox 2019, "Triton: an intermediate language and compiler for tiled neural network
computations".
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from hasten.kernels.operators import laid_out_as

_BLOCK = 1024
_TWICE_ROOT = tl.constexpr(1.5957691216057308)  # 2 √(2/π)
_CUBE = tl.constexpr(0.044715)
_FLAT = tl.constexpr(10.0)  # beyond this the derivative is 0 or 1
_ROOT_OF_HALF = tl.constexpr(0.7071067811865476)
_PEAK = tl.constexpr(0.3989422804014327)  # φ(0)


def forward(x: Tensor, approximate: str) -> Tensor:
    y = torch.empty_like(x)
    _launch(_forward, laid_out_as(y, x), y, approximate=approximate)
    return y


def backward(gradient: Tensor, x: Tensor, approximate: str) -> Tensor:
    to = torch.empty_like(x)
    _launch(_backward, laid_out_as(to, gradient), laid_out_as(to, x), to, approximate=approximate)
    return to


def _launch(kernel: triton.JITFunction, *given: Tensor, approximate: str) -> None:
    count = given[0].numel()
    if not count:  # Triton refuses an empty grid
        return
    grid = (triton.cdiv(count, _BLOCK),)
    by_tanh = approximate == "tanh"
    with torch.cuda.device_of(given[0]):
        # Triton 3.9 warns where enable_fp_fusion is not given.
        kernel[grid](*given, count, by_tanh=by_tanh, block=_BLOCK, enable_fp_fusion=True)


@triton.jit
def value(numbers, by_tanh: tl.constexpr):
    """GELU of float32 numbers."""
    if by_tanh:
        return numbers / (1.0 + tl.exp(numbers * -_TWICE_ROOT * (numbers * numbers * _CUBE + 1.0)))
    return numbers * (0.5 + 0.5 * tl.erf(numbers * _ROOT_OF_HALF))


@triton.jit
def slope(numbers, by_tanh: tl.constexpr):
    """Its derivative."""
    if by_tanh:
        near = tl.where(numbers > _FLAT, _FLAT, tl.where(numbers < -_FLAT, -_FLAT, numbers))  # NaN stays
        square = near * near
        rest = tl.exp(near * -_TWICE_ROOT * (square * _CUBE + 1.0))
        share = 1.0 / (1.0 + rest)  # and 1 - share is rest · share, without cancellation
        inner = (square * (3.0 * _CUBE) + 1.0) * _TWICE_ROOT
        return share + near * (share * rest) * share * inner
    density = tl.exp(numbers * numbers * -0.5) * _PEAK
    below = 0.5 + 0.5 * tl.erf(numbers * _ROOT_OF_HALF)
    return below + tl.where(density > 0.0, numbers * density, 0.0)  # 0 · ∞ far out


@triton.jit
def _forward(x, y, count, by_tanh: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    found = value(tl.load(x + at, mask=at < count).to(tl.float32), by_tanh)
    tl.store(y + at, found.to(y.dtype.element_ty), mask=at < count)


@triton.jit
def _backward(gradient, x, to, count, by_tanh: tl.constexpr, block: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * block + tl.arange(0, block)
    numbers = tl.load(x + at, mask=at < count).to(tl.float32)
    found = tl.load(gradient + at, mask=at < count).to(tl.float32) * slope(numbers, by_tanh)
    tl.store(to + at, found.to(to.dtype.element_ty), mask=at < count)
