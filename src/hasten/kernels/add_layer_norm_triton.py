"""LayerNorm in Triton, of a sum or of one tensor, which compiles it for the accelerator at hand.

Imported where a tensor lies on an accelerator and Triton is installed; add_layer_norm.py says what is computed, and
by_rows.py how a grid is laid over the rows. A row lies in registers between its mean, its variance and what is
written: it is read once. All is computed in float32; the sum is rounded to its format before it is normed, as it is
when backward meets it again.

A row of more than 65,536 numbers has the plain form, and so has one of one number, which is its own mean: nothing is to
be left of it, not even a rounding. Rows whose squares are no float32 numbers come out as in the plain form, not exact
as on a processor. Compiled by Triton 3.9 for compute capability 8.0, all fits into registers for rows of up to 32,768
numbers forward and 8,192 backward, where the sums for weight and bias lie there too. Wider rows come out right, and
more slowly.

Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450; Tillet, Kung and Cox 2019, "Triton: an intermediate language and
compiler for tiled neural network computations".
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from hasten.kernels.by_rows import launch, parts_of, room_for, sum_of
from hasten.kernels.operators import of_parameter


def layer_norm(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """What is normed, and mean and 1/√(variance + eps) of each row."""
    x = x.contiguous()
    normed, mean, inverse = torch.empty_like(x), _of_rows(x), _of_rows(x)
    given = x, None, weight, bias, None, normed, mean, inverse
    launch(_forward, mean.numel(), x.shape[-1], *given, eps, x.shape[-1])
    return normed, mean, inverse


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """The sum, and what layer_norm gives of it. x, residual: of one shape and format."""
    x, residual = x.contiguous(), residual.contiguous()
    total, normed, mean, inverse = torch.empty_like(x), torch.empty_like(x), _of_rows(x), _of_rows(x)
    given = x, residual, weight, bias, total, normed, mean, inverse
    launch(_forward, mean.numel(), x.shape[-1], *given, eps, x.shape[-1])
    return total, normed, mean, inverse


def backward(
    gradient: Tensor,
    onto: Tensor | None,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of x, of weight and of bias. gradient, onto: what reaches the norm and x itself, in x's format."""
    rows, width = mean.numel(), x.shape[-1]
    parts = parts_of(rows)
    gradient, x, onto = gradient.contiguous(), x.contiguous(), None if onto is None else onto.contiguous()
    to, rooms = torch.empty_like(x), [room_for(each, parts) for each in (weight, bias)]
    launch(_backward, parts, width, gradient, onto, x, mean, inverse, weight, to, *rooms, rows, width)
    return to, of_parameter(sum_of(rooms[0]), weight, x), of_parameter(sum_of(rooms[1]), bias, x)


def _of_rows(x: Tensor) -> Tensor:
    return x.new_empty((*x.shape[:-1], 1), dtype=torch.float32)


@triton.jit
def _forward(x, residual, weight, bias, total, normed, mean, inverse, eps, width, block: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    columns = tl.arange(0, block)
    there = columns < width
    at = row * width + columns
    numbers = tl.load(x + at, mask=there, other=0.0).to(tl.float32)
    if residual is not None:
        added = (numbers + tl.load(residual + at, mask=there, other=0.0).to(tl.float32)).to(total.dtype.element_ty)
        tl.store(total + at, added, mask=there)
        numbers = added.to(tl.float32)
    centre = tl.sum(numbers) / width
    apart = tl.where(there, numbers - centre, 0.0)
    scale = tl.rsqrt(tl.sum(apart * apart) / width + eps)
    tl.store(mean + row, centre)
    tl.store(inverse + row, scale)
    found = apart * scale
    if weight is not None:
        found = found * tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
    if bias is not None:
        found = found + tl.load(bias + columns, mask=there, other=0.0).to(tl.float32)
    tl.store(normed + at, found.to(normed.dtype.element_ty), mask=there)


@triton.jit
def _backward(
    gradient, onto, x, mean, inverse, weight, to, room_of_weight, room_of_bias, rows, width, block: tl.constexpr
):
    part, parts = tl.program_id(0), tl.num_programs(0)
    columns = tl.arange(0, block)
    there = columns < width
    at = part.to(tl.int64) * width + columns
    of_weight = tl.zeros([block], dtype=tl.float32)
    of_bias = tl.zeros([block], dtype=tl.float32)
    for row in range(part, rows, parts):
        given = tl.load(gradient + at, mask=there, other=0.0).to(tl.float32)
        scale = tl.load(inverse + row)
        apart = tl.load(x + at, mask=there, other=0.0).to(tl.float32) - tl.load(mean + row)
        unit = tl.where(there, apart, 0.0) * scale  # beyond the row, a huge mean would be ∞ · 0
        of_weight += given * unit
        of_bias += given
        if weight is not None:
            given = given * tl.load(weight + columns, mask=there, other=0.0).to(tl.float32)
        found = (given - tl.sum(given) / width - unit * (tl.sum(given * unit) / width)) * scale
        if onto is not None:
            found = found + tl.load(onto + at, mask=there, other=0.0).to(tl.float32)
        tl.store(to + at, found.to(to.dtype.element_ty), mask=there)
        at += parts.to(tl.int64) * width
    own = part.to(tl.int64) * width + columns
    if room_of_weight is not None:
        tl.store(room_of_weight + own, of_weight, mask=there)
    if room_of_bias is not None:
        tl.store(room_of_bias + own, of_bias, mask=there)
