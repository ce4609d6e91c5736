"""Cross-entropy between scores and classes: -log softmax(scores)[target].

    loss = cross_entropy(scores, target)                        # as torch.nn.functional.cross_entropy
    losses = cross_entropy(scores, target, reduction="none")    # of each row

The loss of a row is lse - scores[target], where lse = log Σ e^score. The sum takes one pass with a running maximum, so
that no exponential overflows. The gradient is e^(score - lse), less 1 at the target, which takes one more pass. Only
the scores, the targets and one number for each row are saved. torch saves a log-softmax as large as the scores, and
computes another tensor of that size before the gradient. In a language model the scores are the largest tensor.

Losses and lse are float64: that costs nothing, and a sum of losses is rounded once. The C++ form is for processors;
graph_rewrite.py leaves an accelerator torch's own function.

Record: records/kernels-cross_entropy-float32-24/2-cores-amd-epyc (2.1 times torch's own).

Not supported: label smoothing, class weights, probabilities as targets, and more than two dimensions.

Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.kernels.operators import Compiled, differentiable, operator, why_plain_on

CPP = Compiled(Path(__file__).with_suffix(".cpp"))
REDUCTIONS = ("mean", "sum", "none")
why_plain = partial(why_plain_on, cpp=CPP)


def cross_entropy(scores: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """scores: [rows, classes], floating-point. target: [rows], int64. Returns a scalar of the scores' dtype, or with
    "none" [rows]; float32 under autocast, as torch does.

    A row whose target is ignore_index has a loss of 0, no gradient, and does not count in a mean. The mean of no rows
    is NaN. A class may be masked by a score of -inf. Differentiable once.

    Raises ValueError for other shapes, dtypes and reductions. On a processor it raises IndexError for a target that is
    no class; on an accelerator torch stops the program there.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}; it can be {', '.join(REDUCTIONS)}")
    _check_shapes(scores, target)
    losses, _ = _of_rows(scores, target, ignore_index)
    if reduction != "none":
        losses = losses.sum()
    if reduction == "mean":
        losses = losses / (target != ignore_index).sum()
    widened = torch.is_autocast_enabled(scores.device.type) and scores.dtype != torch.float64
    return losses.to(torch.float32 if widened else scores.dtype)


def _check_shapes(scores: Tensor, target: Tensor) -> None:
    if scores.dim() != 2 or not scores.is_floating_point():
        raise ValueError(
            f"scores must be floating-point of shape [rows, classes]; they are {scores.dtype} {[*scores.shape]}"
        )
    if scores.shape[1] == 0:
        raise ValueError("scores have 0 classes")
    if target.dtype != torch.int64 or target.shape != scores.shape[:1]:
        raise ValueError(f"target must be int64 of shape [{scores.shape[0]}]; it is {target.dtype} {[*target.shape]}")


def _check(scores: Tensor, target: Tensor, ignore_index: int) -> None:
    """Before C++ reads memory by an index. Raises IndexError."""
    classes = scores.shape[1]
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise IndexError(
            f"target {int(target[row])} of row {row} is none of {classes} classes, nor ignore_index {ignore_index}"
        )


def _plain(scores: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    ignored = target == ignore_index
    wide = scores if scores.dtype == torch.float64 else scores.float()
    lse = wide.logsumexp(-1).double()
    lse = lse.masked_fill(lse.isinf(), torch.nan).masked_fill(ignored, 0)
    at_target = scores.gather(-1, target.masked_fill(ignored, 0)[:, None])[:, 0]
    return (lse - at_target).masked_fill(ignored, 0), lse


def _plain_backward(gradient: Tensor, scores: Tensor, target: Tensor, lse: Tensor, ignore_index: int) -> Tensor:
    ignored, exponents = target == ignore_index, scores.double() - lse[:, None]
    at = target.masked_fill(ignored, 0)[:, None]
    less_one = exponents.gather(-1, at).expm1()  # at the target, without cancellation
    shares = exponents.exp_().scatter_(-1, at, less_one) * gradient[:, None]
    return shares.masked_fill(ignored[:, None], 0).to(scores.dtype).contiguous()


def _on_cpu(scores: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    _check(scores, target, ignore_index)
    if not CPP.takes(scores):
        return _plain(scores, target, ignore_index)
    losses, lse = _empty(scores)
    CPP("forward", scores.contiguous(), target.contiguous(), losses, lse, *scores.shape, ignore_index)
    return losses, lse


def _backward_on_cpu(gradient: Tensor, scores: Tensor, target: Tensor, lse: Tensor, ignore_index: int) -> Tensor:
    if not CPP.takes(scores):
        return _plain_backward(gradient, scores, target, lse, ignore_index)
    to = scores.new_empty(scores.shape)
    gradient, lse = (each.double().expand(len(scores)).contiguous() for each in (gradient, lse))
    given = scores.contiguous(), gradient, target.contiguous(), lse, to
    CPP("backward", *given, *scores.shape, ignore_index)
    return to


def _empty(scores: Tensor) -> tuple[Tensor, Tensor]:
    losses, lse = (scores.new_empty(len(scores), dtype=torch.float64) for _ in range(2))
    return losses, lse


def _save(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    scores, target, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(scores, target, output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
    return _gradient_of_rows(gradient, *ctx.saved_tensors, ctx.ignore_index), None, None


# (scores, target, ignore_index) -> the loss and the lse of each row, float64; both are 0 for a row that is ignored.
_of_rows = operator(
    "cross_entropy(Tensor scores, Tensor target, int ignore_index) -> (Tensor losses, Tensor lse)",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda scores, target, ignore_index: _empty(scores),
)
_gradient_of_rows = operator(
    "cross_entropy_backward(Tensor gradient, Tensor scores, Tensor target, Tensor lse, int ignore_index) -> Tensor",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=lambda gradient, scores, target, lse, ignore_index: scores.new_empty(scores.shape),
)
differentiable("cross_entropy", _differentiate, _save)
