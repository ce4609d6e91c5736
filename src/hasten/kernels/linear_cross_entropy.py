"""A last layer and its cross-entropy in one: the logits of a batch are never there at once.

    loss = linear_cross_entropy(x, weight, target)          # cross_entropy(linear(x, weight), target)
    loss = linear_cross_entropy(x, weight, target, bias, reduction="sum")

Of 8,192 tokens and 50,257 classes the logits are 1.6 GB in float32, and their gradient as much again: often the most
memory of a whole model. Here some rows at a time go through: their logits, their losses, and at once, in forward, the
gradient of their logits, from which comes theirs of x, and a share of that of the weight. Then their logits are
forgotten. What is kept is as large as x and the weight, and backward only multiplies it by the gradient of the loss.

That is why there is no reduction="none": the gradient of each row's loss would have to be known in forward.

The work is three matrix products, as of the layer itself, and torch does them; where nothing is differentiated, one.
The gradient of a weight of 16 bits is summed in float32, and on a processor that makes it slower than the two one after
the other. It is there for its memory.

Source: Hsu et al. 2024, Liger Kernel, arXiv:2410.10989.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.cross_entropy import check_targets, counted, gradient_of_rows, loss_format, of_rows, why_plain
from hasten.kernels.operators import LIBRARY, as_a_product, operator

__all__ = ["linear_cross_entropy", "why_plain"]

LOGITS_AT_ONCE = 1 << 24  # numbers, 64 MB in float32: with fewer, adding to the weight's gradient takes the time
_PRODUCTS_AT_ONCE = 1 << 21  # numbers, of which torch's allocator still reuses the memory


def linear_cross_entropy(
    x: Tensor,
    weight: Tensor,
    target: Tensor,
    bias: Tensor | None = None,
    ignore_index: int = -100,
    reduction: str = "mean",
) -> Tensor:
    """x: [rows, width]. weight: [classes, width], and bias: [classes], as nn.Linear has them, in one format. target:
    [rows], int64. A scalar of x's format comes out; under autocast float32, and the products are taken in its format.

    A row whose target is ignore_index has a loss of 0, no gradient, and does not count in a mean; of no rows that is
    NaN. Differentiable once.

    Raises ValueError for other shapes, formats and reductions; and IndexError for a target that is no class, on a
    processor. On an accelerator the loss is NaN, or without Triton torch stops the program there.
    """
    if reduction not in ("mean", "sum"):
        raise ValueError(
            f"reduction is {reduction!r}, and mean and sum are there: gradients are made in forward, where those of "
            "single losses are not known"
        )
    into = loss_format(x)
    x, weight, bias = as_a_product(x), as_a_product(weight), None if bias is None else as_a_product(bias)
    _check(x, weight, target, bias)
    wanted = [torch.is_grad_enabled() and each is not None and each.requires_grad for each in (x, weight, bias)]
    loss = _sum(x, weight, target, bias, ignore_index, wanted)[0]
    if reduction == "mean":
        number = counted(target, ignore_index)
        # Not a quotient by 0: that would send backward ∞, and ∞ · 0 is no gradient.
        loss = torch.where(number == 0, torch.nan, loss / number.clamp(min=1))
    return loss.to(into)


def _check(x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None) -> None:
    if x.dim() != 2 or weight.dim() != 2 or x.shape[1] != weight.shape[1] or not len(weight):
        raise ValueError(f"x is [rows, width] and weight [classes, width], not {[*x.shape]} and {[*weight.shape]}")
    if target.dtype != torch.int64 or target.shape != x.shape[:1]:
        raise ValueError(f"target is int64 of shape [{len(x)}], not {target.dtype} {[*target.shape]}")
    if bias is not None and bias.shape != weight.shape[:1]:
        raise ValueError(f"bias is [{len(weight)}], not {[*bias.shape]}")
    formats = {each.dtype for each in (x, weight, bias) if each is not None}
    if len(formats) > 1 or not x.is_floating_point():
        raise ValueError(f"x, weight and bias are of one floating-point format, not {', '.join(map(str, formats))}")


def _made(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    _check(x, weight, target, bias)
    if target.is_cpu:
        check_targets(target, len(weight), ignore_index)
    loss, of_x, of_weight, of_bias = _empty(x, weight, target, bias, ignore_index, wanted)
    for each in (loss, of_weight, of_bias):
        each.zero_()
    at_once = max(1, LOGITS_AT_ONCE // len(weight))
    for start in range(0, len(x), at_once):
        part, targets = x[start : start + at_once], target[start : start + at_once]
        logits = functional.linear(part, weight, bias)
        losses, lse = of_rows(logits, targets, ignore_index)
        loss += losses.sum()
        if not any(wanted):
            continue
        gradient = gradient_of_rows(torch.ones_like(losses), logits, targets, lse, ignore_index)
        if wanted[0]:
            torch.mm(gradient, weight, out=of_x[start : start + at_once])
        if wanted[1]:
            _add_product(of_weight, gradient.t(), part)
        if wanted[2]:
            of_bias += gradient.sum(0, dtype=torch.promote_types(gradient.dtype, torch.float32))
    return loss, of_x, of_weight, of_bias


def _add_product(to: Tensor, a: Tensor, b: Tensor) -> None:
    """to += a @ b."""
    if to.dtype == a.dtype:
        to.addmm_(a, b)
        return
    # In parts, as fresh memory of this size costs more than the product.
    rows = max(1, _PRODUCTS_AT_ONCE // max(1, b.shape[1]))
    for some, of_a in zip(to.split(rows), a.split(rows), strict=True):
        some += (of_a @ b).to(to.dtype)


def _empty(
    x: Tensor, weight: Tensor, target: Tensor, bias: Tensor | None, ignore_index: int, wanted: list[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of the loss, and of the gradients of x, weight and bias; [0] for one that is not wanted."""
    wide = torch.promote_types(x.dtype, torch.float32)
    shapes = x.shape, weight.shape, weight.shape[:1]
    of_x, of_weight, of_bias = (
        x.new_empty(shape if needed else [0], dtype=format)
        for shape, needed, format in zip(shapes, wanted, (x.dtype, wide, torch.float64), strict=True)
    )
    return x.new_empty([], dtype=torch.float64), of_x, of_weight, of_bias


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    x, *_, ctx.wanted = inputs
    ctx.format = x.dtype
    ctx.mark_non_differentiable(*output[1:])
    ctx.save_for_backward(*output[1:])


def _differentiate(ctx: Any, gradient: Tensor, *_: Tensor) -> tuple[Tensor | None, ...]:
    if torch.is_grad_enabled():
        raise RuntimeError("linear_cross_entropy keeps gradients alone, and so is differentiable once")
    of_x, of_weight, of_bias = (
        (kept * gradient).to(ctx.format) if needed else None
        for kept, needed in zip(ctx.saved_tensors, ctx.wanted, strict=True)
    )
    return of_x, of_weight, None, of_bias, None, None


# The sum of losses, and its gradients.
_sum = operator(
    "linear_cross_entropy(Tensor x, Tensor weight, Tensor target, Tensor? bias, int ignore_index, bool[] wanted)"
    " -> (Tensor loss, Tensor of_x, Tensor of_weight, Tensor of_bias)",
    plain=_made,
    on_cpu=_made,
    fake=_empty,
)
torch.library.register_autograd("hasten::linear_cross_entropy", _differentiate, setup_context=_keep, lib=LIBRARY)
