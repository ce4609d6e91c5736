"""RMSNorm in Triton, which compiles it for the accelerator at hand.

Imported where a tensor lies on an accelerator and Triton is installed; rms_norm.py says what is computed, and
by_rows.py how a grid is laid over the rows. A row lies in registers between the sum of its squares and what is
written: it is read once. All is computed in float32.

A row of more than 65,536 numbers has torch's own form. Rows whose squares are no float32 numbers come out as in that
one, not exact as on a processor. Compiled by Triton 3.9 for compute capability 8.0, all fits into registers for rows of
up to 32,768 numbers forward and 16,384 backward, where the sums for the weight lie there too. Wider rows come out
right, and more slowly.

Source: Zhang and Sennrich 2019, arXiv:1910.07467; Tillet, Kung and Cox 2019, "Triton: an intermediate language and
compiler for tiled neural network computations".
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from hasten.kernels.by_rows import launch, parts_of, room_for, sum_of
from hasten.kernels.operators import of_parameter


def forward(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    """What is normed, and 1/√(mean of x² + eps) of each row."""
    x = x.contiguous()
    y, inverse = torch.empty_like(x), x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)
    launch(_forward, inverse.numel(), x.shape[-1], x, weight, y, inverse, eps, x.shape[-1])
    return y, inverse


def backward(gradient: Tensor, x: Tensor, inverse: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """The gradients of x and of the weight. gradient: in x's format."""
    rows, width = inverse.numel(), x.shape[-1]
    parts = parts_of(rows)
    gradient, x = gradient.contiguous(), x.contiguous()
    to, room = torch.empty_like(x), room_for(weight, parts)
    launch(_backward, parts, width, gradient, x, inverse, weight, to, room, rows, width)
    return to, of_parameter(sum_of(room), weight, x)


@triton.jit
def _forward(x, weight, y, inverse, eps, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    there = columns < width
    at = row * width + columns
    numbers = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    scale = tl.rsqrt(tl.sum(numbers * numbers) / width + eps)
    tl.store(inverse + row, scale)
    found = numbers * scale
    if weight is not None:
        found = found * tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(y + at, found.to(y.dtype.element_ty), mask=there)


@triton.jit
def _backward(gradient, x, inverse, weight, to, room, rows, width, block: tl.constexpr):
    part, parts = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, block)
    there = columns < width
    at = part.to(tl.int64) * width + columns
    of_weight = tl.zeros([block], dtype=tl.float32)
    for row in range(part, rows, parts):
        given = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
        scale = tl.load(inverse + row)
        unit = tl.load(x + at, mask=there, other=0.0).to(tl.float32) * scale
        of_weight += given * unit
        if weight is not None:
            given = given * tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
        found = (given - unit * (tl.sum(given * unit) / width)) * scale
        tl.store(to + at, found.to(to.dtype.element_ty), mask=there)
        at += parts.to(tl.int64) * width
    if room is not None:
        tl.store(room + part.to(tl.int64) * width + columns, of_weight, mask=there)
