"""Softmax: e^x / Σ e^x over one dimension.

    y = softmax(x)                           # over the last dimension; what torch.softmax(x, -1) gives
    y = softmax(x, dim=1)

Forward finds the maximum of a row, then e^(x - maximum), which cannot overflow, and the sum. The row stays in the
processor's cache between these steps, so memory is read once and written once. Backward computes the gradient of x as
y · (g - Σ g y), where g is the gradient of y. Only y is saved. Composed of torch's functions, each step of either
formula is a pass over memory. Everything is computed in float32, whatever the dtype. On an accelerator the Triton form
is used where Triton is installed (softmax_triton.py), and torch's own function elsewhere.

Source: Bridle 1990, "Probabilistic interpretation of feedforward classification network outputs".
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.kernels.operators import Compiled, differentiable, operator, why_plain_on
from hasten.kernels.triton_form import TritonForm

CPP = Compiled(Path(__file__).with_suffix(".cpp"))
TRITON = TritonForm(f"{__name__}_triton", lambda form, device: form.forward(torch.zeros(1, 1, device=device)))
why_plain = partial(why_plain_on, cpp=CPP, triton=TRITON)


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """x: any shape and floating-point dtype, which the result has too, also under autocast.

    An element masked by -inf gets 0, and a row of nothing but -inf gets NaN. A dimension other than the last costs a
    copy. Differentiable once. Raises IndexError for a dimension that x does not have.
    """
    if x.dim() == 0:
        return softmax(x[None], dim)[0]
    return _softmax(x.movedim(dim, -1)).movedim(-1, dim)


def _plain(x: Tensor) -> Tensor:
    return torch.softmax(x, -1).contiguous()


def _plain_backward(gradient: Tensor, y: Tensor) -> Tensor:
    wide = torch.promote_types(y.dtype, torch.float32)
    products = gradient.to(wide) * y
    return (products - y * products.sum(-1, keepdim=True)).to(y.dtype).contiguous()


def _on_cpu(x: Tensor) -> Tensor:
    if not CPP.takes(x) or not x.numel():
        return _plain(x)
    y = x.new_empty(x.shape)
    CPP("forward", x.contiguous(), y, x.numel() // x.shape[-1], x.shape[-1])
    return y


def _backward_on_cpu(gradient: Tensor, y: Tensor) -> Tensor:
    if not CPP.takes(y, gradient) or not y.numel():
        return _plain_backward(gradient, y)
    to = y.new_empty(y.shape)
    given = gradient.expand_as(y).contiguous(), y.contiguous(), to
    CPP("backward", *given, y.numel() // y.shape[-1], y.shape[-1])
    return to


def _save(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _differentiate(ctx: Any, gradient: Tensor) -> Tensor:
    return _softmax_backward(gradient, *ctx.saved_tensors)


_softmax = operator(
    "softmax(Tensor x) -> Tensor",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda x: x.new_empty(x.shape),
    on_cuda=TRITON.function("forward", _plain),
)
_softmax_backward = operator(
    "softmax_backward(Tensor gradient, Tensor y) -> Tensor",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=lambda gradient, y: y.new_empty(y.shape),
    on_cuda=TRITON.function("backward", _plain_backward),
)
differentiable("softmax", _differentiate, _save)
