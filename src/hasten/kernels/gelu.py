"""GELU: x · Φ(x), where Φ is the normal distribution; or by tanh, which is near it.

    y = gelu(x)                              # what torch.nn.functional.gelu(x) gives
    y = gelu(x, approximate="tanh")

By tanh it is ½ x (1 + tanh u) of u = √(2/π) (x + 0.044715 x³), and that is x / (1 + e^(-2u)). On a processor both forms
are x times a share that a polynomial gives, another one for each sixteenth of its range: no exponential, no division,
and nearer than torch's. So is the derivative. Backward makes it of x in one pass, and so nothing else is kept.

Composed of torch's functions each step of the formula is a pass over memory; this is one, forward and backward. On an
accelerator it is Triton's to compile where Triton is installed (gelu_triton.py), and torch's own elsewhere.

Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.accelerated import InTriton
from hasten.kernels.operators import LIBRARY, Compiled, differentiable_once, laid_out_as, operator

_COMPILED = Compiled(Path(__file__).with_suffix(".cpp"))
_FORMS = {"none": "exact", "tanh": "tanh"}  # in the C++ file
_TRITON = InTriton(f"{__name__}_triton", lambda form, device: form.forward(torch.zeros(1, device=device), "tanh"))
why_plain, why_plain_on = _COMPILED.why_plain, _TRITON.why_plain


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """Of any shape and floating-point format; the same come out. approximate: "none" or "tanh".

    Differentiable once. Raises ValueError for another form.
    """
    if approximate not in _FORMS:
        raise ValueError(f"approximate is {approximate!r}, and none and tanh are the forms")
    return _gelu(x, approximate)


def _plain(x: Tensor, approximate: str) -> Tensor:
    return functional.gelu(x, approximate=approximate)


def _plain_backward(gradient: Tensor, x: Tensor, approximate: str) -> Tensor:
    return torch.ops.aten.gelu_backward(gradient, x, approximate=approximate)


def _on_cpu(x: Tensor, approximate: str) -> Tensor:
    if not _COMPILED.takes(x):
        return _plain(x, approximate)
    y = torch.empty_like(x)
    _COMPILED(_FORMS[approximate], laid_out_as(y, x), y, x.numel())
    return y


def _backward_on_cpu(gradient: Tensor, x: Tensor, approximate: str) -> Tensor:
    if not _COMPILED.takes(x, gradient):
        return _plain_backward(gradient, x, approximate)
    to = torch.empty_like(x)
    _COMPILED(f"{_FORMS[approximate]}_backward", laid_out_as(to, gradient), laid_out_as(to, x), to, x.numel())
    return to


def _on_cuda(x: Tensor, approximate: str) -> Tensor:
    found = _TRITON.taking(x)
    return _plain(x, approximate) if found is None else found.forward(x, approximate)


def _backward_on_cuda(gradient: Tensor, x: Tensor, approximate: str) -> Tensor:
    found = _TRITON.taking(x, gradient)
    if found is None:
        return _plain_backward(gradient, x, approximate)
    return found.backward(gradient, x, approximate)


def _keep(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    x, ctx.approximate = inputs
    ctx.save_for_backward(x)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _gelu_backward(gradient, *ctx.saved_tensors, ctx.approximate), None


_gelu = operator(
    "gelu(Tensor x, str approximate) -> Tensor",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda x, approximate: torch.empty_like(x),
)
_gelu_backward = operator(
    "gelu_backward(Tensor gradient, Tensor x, str approximate) -> Tensor",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=lambda gradient, x, approximate: torch.empty_like(x),
)
LIBRARY.impl("gelu", _on_cuda, "CUDA")
LIBRARY.impl("gelu_backward", _backward_on_cuda, "CUDA")
torch.library.register_autograd("hasten::gelu", _differentiate, setup_context=_keep, lib=LIBRARY)
differentiable_once("gelu")
