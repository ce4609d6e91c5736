"""Cross-entropy: how surprised scores are by the class that is right, -log softmax(scores)[target].

    loss = cross_entropy(scores, target)                        # as torch.nn.functional.cross_entropy
    losses = cross_entropy(scores, target, reduction="none")    # of each row

Of one row it is lse - scores[target], where lse = log Σ e^score. That sum needs one pass, with a running greatest score
so that no exponential overflows; and its gradient is e^(score - lse), less 1 at the target: one pass more. Nothing is
kept but the scores, the targets and one number of each row, where torch keeps a log-softmax as large as the scores, and
makes another of that size before the gradient. In a language model the scores are the largest tensor there is.

What is one number of a row is float64: that costs nothing, and a sum of losses is rounded once. On an accelerator it is
Triton's to compile where Triton is installed (cross_entropy_triton.py), and torch's own elsewhere.

Not here: label smoothing, weights of classes, probabilities as targets, and more dimensions than two.

Source: Milakov and Gimelshein 2018, arXiv:1805.02867.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

from hasten.kernels.accelerated import InTriton
from hasten.kernels.operators import LIBRARY, Compiled, differentiable_once, operator

_COMPILED = Compiled(Path(__file__).with_suffix(".cpp"))
REDUCTIONS = ("mean", "sum", "none")


def _tried(form: ModuleType, device: torch.device) -> object:
    return form.forward(torch.zeros(1, 1, device=device), torch.zeros(1, dtype=torch.int64, device=device), -100)


_TRITON = InTriton(f"{__name__}_triton", _tried)
why_plain, why_plain_on = _COMPILED.why_plain, _TRITON.why_plain


def cross_entropy(scores: Tensor, target: Tensor, ignore_index: int = -100, reduction: str = "mean") -> Tensor:
    """scores: [rows, classes], floating-point. target: [rows], int64. A scalar of the scores' format comes out, or with
    "none" [rows]; float32 under autocast, as torch's.

    A row whose target is ignore_index has a loss of 0, no gradient, and does not count in a mean; of no rows that is
    NaN. A class may be masked by a score of -inf. Differentiable once.

    Raises ValueError for other shapes, formats and reductions; and IndexError for a target that is no class, on a
    processor. On an accelerator, where looking would mean waiting, the loss and the gradient of its row are NaN, or
    without Triton torch stops the program there.
    """
    if reduction not in REDUCTIONS:
        raise ValueError(f"reduction is {reduction!r}, and {', '.join(REDUCTIONS)} are there")
    _check_shapes(scores, target)
    losses, _ = of_rows(scores, target, ignore_index)
    if reduction != "none":
        losses = losses.sum()
    if reduction == "mean":
        losses = losses / counted(target, ignore_index)
    return losses.to(loss_format(scores))


def loss_format(scores: Tensor) -> torch.dtype:
    """The scores' own, and under autocast float32 at least, as torch has it."""
    widened = torch.is_autocast_enabled(scores.device.type) and scores.dtype != torch.float64
    return torch.float32 if widened else scores.dtype


def counted(target: Tensor, ignore_index: int) -> Tensor:
    """How many rows have a loss."""
    return (target != ignore_index).sum()


def _check_shapes(scores: Tensor, target: Tensor) -> None:
    if scores.dim() != 2 or not scores.is_floating_point():
        raise ValueError(
            f"scores are floating-point numbers of shape [rows, classes], not {scores.dtype} {[*scores.shape]}"
        )
    if scores.shape[1] == 0:
        raise ValueError("scores are of no class")
    if target.dtype != torch.int64 or target.shape != scores.shape[:1]:
        raise ValueError(f"target is int64 of shape [{scores.shape[0]}], not {target.dtype} {[*target.shape]}")


def check_targets(target: Tensor, classes: int, ignore_index: int) -> None:
    """Before any memory is read by an index. Raises IndexError."""
    wrong = ((target < 0) | (target >= classes)) & (target != ignore_index)
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise IndexError(
            f"target {int(target[row])} of row {row} is none of {classes} classes, nor {ignore_index}, which is ignored"
        )


def _check(scores: Tensor, target: Tensor, ignore_index: int) -> None:
    _check_shapes(scores, target)
    check_targets(target, scores.shape[1], ignore_index)


def _wide(scores: Tensor) -> Tensor:
    return scores if scores.dtype == torch.float64 else scores.float()


def _plain(scores: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    ignored = target == ignore_index
    lse = _wide(scores).logsumexp(-1).double()
    lse = lse.masked_fill(lse.isinf(), torch.nan).masked_fill(ignored, 0)
    at_target = scores.gather(-1, target.masked_fill(ignored, 0)[:, None])[:, 0]
    return (lse - at_target).masked_fill(ignored, 0), lse


def _plain_backward(gradient: Tensor, scores: Tensor, target: Tensor, lse: Tensor, ignore_index: int) -> Tensor:
    wide, ignored = _wide(scores), target == ignore_index
    near = lse.to(wide.dtype)  # in two numbers: scores far from 0 would lose their last digits to one
    rest = (lse - near).to(wide.dtype)
    shares = (wide - near[:, None]).sub_(rest[:, None]).exp_()
    at = target.masked_fill(ignored, 0)[:, None]
    less_one = (scores.gather(-1, at) - lse[:, None]).expm1()  # the target's, without cancellation
    shares.scatter_(-1, at, less_one.to(wide.dtype))
    shares.mul_(gradient[:, None]).masked_fill_(ignored[:, None], 0)
    return shares.to(scores.dtype).contiguous()


def _checked_plain(scores: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    _check_shapes(scores, target)
    return _plain(scores, target, ignore_index)


def _on_cpu(scores: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    _check(scores, target, ignore_index)
    if not _COMPILED.takes(scores):
        return _plain(scores, target, ignore_index)
    losses, lse = _empty(scores)
    _COMPILED("forward", scores.contiguous(), target.contiguous(), losses, lse, *scores.shape, ignore_index)
    return losses, lse


def _backward_on_cpu(gradient: Tensor, scores: Tensor, target: Tensor, lse: Tensor, ignore_index: int) -> Tensor:
    _check(scores, target, ignore_index)
    if not _COMPILED.takes(scores):
        return _plain_backward(gradient, scores, target, lse, ignore_index)
    to = scores.new_empty(scores.shape)
    gradient, lse = (each.double().expand(len(scores)).contiguous() for each in (gradient, lse))
    given = scores.contiguous(), gradient, target.contiguous(), lse, to
    _COMPILED("backward", *given, *scores.shape, ignore_index)
    return to


def _on_cuda(scores: Tensor, target: Tensor, ignore_index: int) -> tuple[Tensor, Tensor]:
    _check_shapes(scores, target)
    found = _TRITON.taking(scores)
    return (_plain if found is None else found.forward)(scores, target, ignore_index)


def _backward_on_cuda(gradient: Tensor, scores: Tensor, target: Tensor, lse: Tensor, ignore_index: int) -> Tensor:
    _check_shapes(scores, target)
    found = _TRITON.taking(scores)
    return (_plain_backward if found is None else found.backward)(gradient, scores, target, lse, ignore_index)


def _empty(scores: Tensor) -> tuple[Tensor, Tensor]:
    losses, lse = (scores.new_empty(len(scores), dtype=torch.float64) for _ in range(2))
    return losses, lse


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor, int], output: tuple[Tensor, Tensor]) -> None:
    scores, target, ctx.ignore_index = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(scores, target, output[1])


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None]:
    return gradient_of_rows(gradient, *ctx.saved_tensors, ctx.ignore_index), None, None


# (scores, target, ignore_index) -> the loss and the lse of each row, float64; both are 0 of one that is ignored.
of_rows = operator(
    "cross_entropy(Tensor scores, Tensor target, int ignore_index) -> (Tensor losses, Tensor lse)",
    plain=_checked_plain,
    on_cpu=_on_cpu,
    fake=lambda scores, target, ignore_index: _empty(scores),
)
gradient_of_rows = operator(
    "cross_entropy_backward(Tensor gradient, Tensor scores, Tensor target, Tensor lse, int ignore_index) -> Tensor",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=lambda gradient, scores, target, lse, ignore_index: scores.new_empty(scores.shape),
)
LIBRARY.impl("cross_entropy", _on_cuda, "CUDA")
LIBRARY.impl("cross_entropy_backward", _backward_on_cuda, "CUDA")
torch.library.register_autograd("hasten::cross_entropy", _differentiate, setup_context=_keep, lib=LIBRARY)
differentiable_once("cross_entropy")
