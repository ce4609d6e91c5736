"""Softmax in Triton: one program of the grid for each row, which reads it in blocks of columns.

It is imported when a tensor on an accelerator is met and Triton is installed; softmax.py describes the formula. One
pass finds the maximum of a row and the sum together: where a block has a larger maximum, the sum so far is scaled to
it. A second pass writes the results, and reads most of the row from a cache. Holding a row in registers instead would
limit its width. Everything is computed in float32.

Source: Milakov and Gimelshein 2018, arXiv:1805.02867, "Online normalizer calculation for softmax".
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

_WIDEST = 4096  # columns of a block, at most
_OF_A_WARP = 256  # columns: eight numbers to a thread, so that 16-bit formats are read 16 bytes at a time


def forward(x: Tensor) -> Tensor:
    y = x.new_empty(x.shape)
    for_each_row(_forward, x.contiguous(), y)
    return y


def backward(gradient: Tensor, y: Tensor) -> Tensor:
    to = y.new_empty(y.shape)
    for_each_row(_backward, gradient.expand_as(y).contiguous(), y.contiguous(), to)
    return to


def for_each_row(kernel: triton.JITFunction, *given: Tensor | int) -> None:
    """Run the kernel with these arguments and the width of the last one, once for each of its rows."""
    last = given[-1]
    assert isinstance(last, Tensor)
    if not last.numel():  # Triton refuses an empty grid
        return
    width = last.shape[-1]
    block = min(_WIDEST, triton.next_power_of_2(width))
    with torch.cuda.device_of(last):
        # Triton 3.9 warns where enable_fp_fusion is not given.
        options = {"num_warps": max(1, block // _OF_A_WARP), "enable_fp_fusion": True}
        kernel[(last.numel() // width,)](*given, width, block=block, **options)


@triton.jit
def maximum_and_sum(row, width, block: tl.constexpr):
    """The maximum of a row and Σ e^(x - maximum), which is NaN where an element is NaN or ∞; 0 and 0 for a row of
    -∞."""
    maximum = tl.full((), float("-inf"), tl.float32)
    shift = tl.full((), 0.0, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        numbers = tl.load(row + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
        before = maximum
        maximum = tl.maximum(maximum, tl.max(numbers, 0))
        shift = tl.where(maximum == float("-inf"), 0.0, maximum)  # -∞ less -∞ is NaN
        total = total * tl.exp(before - shift) + tl.sum(tl.exp(numbers - shift), 0)
    return shift, total


@triton.jit
def _forward(x, y, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    maximum, total = maximum_and_sum(x + row, width, block)
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        numbers = tl.load(x + row + columns, mask=columns < width).to(tl.float32)
        parts = tl.exp(numbers - maximum) / total
        tl.store(y + row + columns, parts.to(y.dtype.element_ty), mask=columns < width)


@triton.jit
def _backward(gradient, y, to, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    mean = 0.0  # of the gradient, weighted by y
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        parts = tl.load(y + row + columns, mask=columns < width, other=0.0).to(tl.float32)
        given = tl.load(gradient + row + columns, mask=columns < width, other=0.0).to(tl.float32)
        mean += tl.sum(given * parts, 0)
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        parts = tl.load(y + row + columns, mask=columns < width).to(tl.float32)
        given = tl.load(gradient + row + columns, mask=columns < width).to(tl.float32)
        found = parts * (given - mean)
        tl.store(to + row + columns, found.to(to.dtype.element_ty), mask=columns < width)
