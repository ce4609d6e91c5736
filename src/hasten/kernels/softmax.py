"""Softmax: shares that add up to 1, e^x / Σ e^x over one dimension.

    y = softmax(x)                           # over the last; what torch.softmax(x, -1) gives
    y = softmax(x, dim=1)

Forward, a row's greatest number is found, then e^(x - greatest) of each, which cannot overflow, and their sum; the row
stays in a cache between these steps, so memory is read once and written once. Backward, the gradient of x is
y · (g - Σ g y), where g is that of y: y alone is kept. Composed of torch's functions, each step of either formula is a
pass over memory. What is in between is float32, whatever the format. On an accelerator it is Triton's to compile where
Triton is installed (softmax_triton.py), and torch's own elsewhere.

Source: Bridle 1990, "Probabilistic interpretation of feedforward classification network outputs".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.kernels.accelerated import InTriton
from hasten.kernels.operators import LIBRARY, Compiled, differentiable_once, operator

_COMPILED = Compiled(Path(__file__).with_suffix(".cpp"))
_TRITON = InTriton(f"{__name__}_triton", lambda form, device: form.forward(torch.zeros(1, 1, device=device)))
why_plain, why_plain_on = _COMPILED.why_plain, _TRITON.why_plain


def softmax(x: Tensor, dim: int = -1) -> Tensor:
    """Of any shape and floating-point format; the same come out, under autocast as well.

    Of what is masked by -inf the share is 0, and of a row of nothing else NaN. Another dimension than the last costs a
    copy. Differentiable once. Raises IndexError for a dimension that is not there.
    """
    if x.dim() == 0:
        return softmax(x[None], dim)[0]
    return _softmax(x.movedim(dim, -1)).movedim(-1, dim)


def _plain(x: Tensor) -> Tensor:
    return torch.softmax(x, -1).contiguous()


def _plain_backward(gradient: Tensor, y: Tensor) -> Tensor:
    return torch.ops.aten._softmax_backward_data(gradient, y, -1, y.dtype).contiguous()


def _on_cpu(x: Tensor) -> Tensor:
    if not _COMPILED.takes(x) or not x.numel():
        return _plain(x)
    y = x.new_empty(x.shape)
    _COMPILED("forward", x.contiguous(), y, x.numel() // x.shape[-1], x.shape[-1])
    return y


def _backward_on_cpu(gradient: Tensor, y: Tensor) -> Tensor:
    if not _COMPILED.takes(y, gradient) or not y.numel():
        return _plain_backward(gradient, y)
    to = y.new_empty(y.shape)
    given = gradient.expand_as(y).contiguous(), y.contiguous(), to
    _COMPILED("backward", *given, y.numel() // y.shape[-1], y.shape[-1])
    return to


def _on_cuda(x: Tensor) -> Tensor:
    found = _TRITON.taking(x)
    return _plain(x) if found is None else found.forward(x)


def _backward_on_cuda(gradient: Tensor, y: Tensor) -> Tensor:
    found = _TRITON.taking(y, gradient)
    return _plain_backward(gradient, y) if found is None else found.backward(gradient, y)


def _keep(ctx: Any, inputs: tuple[Tensor], output: Tensor) -> None:
    ctx.save_for_backward(output)


def _differentiate(ctx: Any, gradient: Tensor) -> Tensor:
    return _softmax_backward(gradient, *ctx.saved_tensors)


_softmax = operator(
    "softmax(Tensor x) -> Tensor",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda x: x.new_empty(x.shape),
)
_softmax_backward = operator(
    "softmax_backward(Tensor gradient, Tensor y) -> Tensor",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=lambda gradient, y: y.new_empty(y.shape),
)
LIBRARY.impl("softmax", _on_cuda, "CUDA")
LIBRARY.impl("softmax_backward", _backward_on_cuda, "CUDA")
torch.library.register_autograd("hasten::softmax", _differentiate, setup_context=_keep, lib=LIBRARY)
differentiable_once("softmax")
