"""Softmax in Triton: a program of the grid for each row, which goes over it in blocks of columns.

Imported where a tensor lies on an accelerator and Triton is installed; softmax.py says what is computed. The greatest
number of a row and the sum are found in one pass, as in cross_entropy_triton.py: where a block has a greater one than
all before it, what is summed so far is scaled to it. Only then can shares be written, so a row is read twice; the
second time most of it is in a cache. Keeping it in registers instead would bound how wide it may be. All is computed
in float32.

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
    """Run the kernel on what is given, and the width of the last, whose rows it goes over."""
    last = given[-1]
    assert isinstance(last, Tensor)
    if not last.numel():  # a grid of none is refused
        return
    width = last.shape[-1]
    block = min(_WIDEST, triton.next_power_of_2(width))
    with torch.cuda.device_of(last):
        # Triton 3.9 warns of whoever does not say whether products and sums are to be fused.
        options = {"num_warps": max(1, block // _OF_A_WARP), "enable_fp_fusion": True}
        kernel[(last.numel() // width,)](*given, width, block=block, **options)


@triton.jit
def greatest_and_sum(row, width, block: tl.constexpr):
    """Of a row the greatest number and Σ e^(x - greatest), which is NaN where one is NaN or ∞. Of none but -∞ they are
    0 and 0."""
    greatest = tl.full((), float("-inf"), tl.float32)
    shift = tl.full((), 0.0, tl.float32)
    total = tl.full((), 0.0, tl.float32)
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        numbers = tl.load(row + columns, mask=columns < width, other=float("-inf")).to(tl.float32)
        before = greatest
        greatest = tl.maximum(greatest, tl.max(numbers, 0))
        shift = tl.where(greatest == float("-inf"), 0.0, greatest)  # -∞ less -∞ is NaN
        total = total * tl.exp(before - shift) + tl.sum(tl.exp(numbers - shift), 0)
    return shift, total


@triton.jit
def _forward(x, y, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    greatest, total = greatest_and_sum(x + row, width, block)
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        numbers = tl.load(x + row + columns, mask=columns < width).to(tl.float32)
        shares = tl.exp(numbers - greatest) / total
        tl.store(y + row + columns, shares.to(y.dtype.element_ty), mask=columns < width)


@triton.jit
def _backward(gradient, y, to, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64) * width
    mean = 0.0  # of the gradient, by the shares
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        shares = tl.load(y + row + columns, mask=columns < width, other=0.0).to(tl.float32)
        given = tl.load(gradient + row + columns, mask=columns < width, other=0.0).to(tl.float32)
        mean += tl.sum(given * shares, 0)
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        shares = tl.load(y + row + columns, mask=columns < width).to(tl.float32)
        given = tl.load(gradient + row + columns, mask=columns < width).to(tl.float32)
        found = shares * (given - mean)
        tl.store(to + row + columns, found.to(to.dtype.element_ty), mask=columns < width)
