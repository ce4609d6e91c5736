"""Cross-entropy in Triton: a program of the grid for each row, which goes over it in blocks of columns.

Imported where a tensor lies on an accelerator and Triton is installed; cross_entropy.py says what is computed. Forward
reads the scores once, and writes two numbers of each row; backward reads them once and writes their gradient. What is
done for each score is float32, and what is done once for a row float64: in it e^(score - lse) less 1, the gradient at
the target, keeps its digits where that class is nearly sure.

No target is looked at before: of one that is no class nothing is read, and the row's loss and its gradient are NaN.

Source: Milakov and Gimelshein 2018, arXiv:1805.02867, "Online normalizer calculation for softmax".
"""

from __future__ import annotations

import torch
import triton  # pyright: ignore[reportMissingImports]
import triton.language as tl  # pyright: ignore[reportMissingImports]
from torch import Tensor

from hasten.kernels.softmax_triton import for_each_row, greatest_and_sum


def forward(scores: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    losses, lse = (scores.new_empty(len(scores), dtype=torch.float64) for _ in range(2))
    for_each_row(_forward, target.contiguous(), losses, lse, ignore_index, scores.contiguous())
    return losses, lse


def backward(gradient: Tensor, scores: Tensor, target: Tensor, lse: Tensor, ignore_index: int) -> Tensor:
    to = scores.new_empty(scores.shape)
    gradient, lse = (each.double().expand(len(scores)).contiguous() for each in (gradient, lse))
    for_each_row(_backward, gradient, target.contiguous(), lse, ignore_index, scores.contiguous(), to)
    return to


@triton.jit
def _at_target(row, chosen, width):
    """The target's score; NaN where it is no class."""
    there = (chosen >= 0) & (chosen < width)
    return tl.load(row + chosen, mask=there, other=float("nan")).to(tl.float64)


@triton.jit
def _forward(target, losses, lse, ignore_index, scores, width, block: tl.constexpr):
    row = tl.program_id(0)
    start = scores + row.to(tl.int64) * width
    chosen = tl.load(target + row)
    ignored = chosen == ignore_index
    greatest, total = greatest_and_sum(start, tl.where(ignored, 0, width), block)
    found = greatest.to(tl.float64) + tl.log(total.to(tl.float64))
    found = tl.where(total > 0.0, found, float("nan"))  # of none but -∞ it would be -∞
    tl.store(lse + row, tl.where(ignored, 0.0, found))
    tl.store(losses + row, tl.where(ignored, 0.0, found - _at_target(start, chosen, width)))


@triton.jit
def _backward(gradient, target, lse, ignore_index, scores, to, width, block: tl.constexpr):
    row = tl.program_id(0)
    place = row.to(tl.int64) * width
    chosen = tl.load(target + row)
    counts = chosen != ignore_index
    known = tl.load(lse + row)
    near = known.to(tl.float32)  # in two numbers: scores far from 0 would lose their last digits to one
    rest = (known - near).to(tl.float32)
    less_one = tl.exp(_at_target(scores + place, chosen, width) - known) - 1.0
    factor = tl.load(gradient + row)
    at_target = (less_one * factor).to(tl.float32)
    # Where the target is no class all of the row is NaN, not one number that nobody looks at.
    factor = tl.where(less_one == less_one, factor, less_one).to(tl.float32)
    read = tl.where(counts, width, 0)
    for start in range(0, width, block):
        columns = start + tl.arange(0, block)
        numbers = tl.load(scores + place + columns, mask=columns < read, other=0.0).to(tl.float32)
        found = tl.where(columns == chosen, at_target, tl.exp((numbers - near) - rest) * factor)
        found = tl.where(counts, found, 0.0)
        tl.store(to + place + columns, found.to(to.dtype.element_ty), mask=columns < width)
