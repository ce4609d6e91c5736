"""GELU: x · Φ(x), where Φ is the normal distribution function; or its approximation by tanh.

    y = gelu(x)                              # what torch.nn.functional.gelu(x) gives
    y = gelu(x, approximate="tanh")

By tanh it is ½ x (1 + tanh u) with u = √(2/π) (x + 0.044715 x³), which equals x / (1 + e^(-2u)). On a processor both
variants are x times a factor from a piecewise polynomial with sixteen pieces. That needs no exponential and no
division, and it is more exact than torch's function. The derivative is computed in the same way. Only x is saved for
backward.

Composed of torch's functions, each step of the formula is a pass over memory. This operator makes one pass forward and
one backward. On an accelerator the Triton form is used where Triton is installed (gelu_triton.py), and torch's own
function elsewhere.

Record: records/kernels-gelu-float32-22/2-cores-amd-epyc (14 times the composed form, 4 times torch's own).

Source: Hendrycks and Gimpel 2016, arXiv:1606.08415.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.operators import Compiled, differentiable, laid_out_as, operator, why_plain_on
from hasten.kernels.triton_form import TritonForm

CPP = Compiled(Path(__file__).with_suffix(".cpp"))
TRITON = TritonForm(f"{__name__}_triton", lambda form, device: form.forward(torch.zeros(1, device=device), "tanh"))
VARIANTS = {"none": "exact", "tanh": "tanh"}  # torch's name -> the name in the C++ file
why_plain = partial(why_plain_on, cpp=CPP, triton=TRITON)


def gelu(x: Tensor, approximate: str = "none") -> Tensor:
    """x: any shape and floating-point dtype, which the result has too. approximate: "none" or "tanh".

    Differentiable once. Raises ValueError for another value of approximate.
    """
    if approximate not in VARIANTS:
        raise ValueError(f"approximate is {approximate!r}; it can be none or tanh")
    return _gelu(x, approximate)


def _plain(x: Tensor, approximate: str) -> Tensor:
    return functional.gelu(x, approximate=approximate)


def _plain_backward(gradient: Tensor, x: Tensor, approximate: str) -> Tensor:
    return torch.ops.aten.gelu_backward(gradient, x, approximate=approximate)


def _on_cpu(x: Tensor, approximate: str) -> Tensor:
    if not CPP.takes(x):
        return _plain(x, approximate)
    y = torch.empty_like(x)
    CPP(VARIANTS[approximate], laid_out_as(y, x), y, x.numel())
    return y


def _backward_on_cpu(gradient: Tensor, x: Tensor, approximate: str) -> Tensor:
    if not CPP.takes(x, gradient):
        return _plain_backward(gradient, x, approximate)
    to = torch.empty_like(x)
    CPP(f"{VARIANTS[approximate]}_backward", laid_out_as(to, gradient), laid_out_as(to, x), to, x.numel())
    return to


def _save(ctx: Any, inputs: tuple[Tensor, str], output: Tensor) -> None:
    x, ctx.approximate = inputs
    ctx.save_for_backward(x)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return _gelu_backward(gradient, *ctx.saved_tensors, ctx.approximate), None


_gelu = operator(
    "gelu(Tensor x, str approximate) -> Tensor",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda x, approximate: torch.empty_like(x),
    on_cuda=TRITON.function("forward", _plain),
)
_gelu_backward = operator(
    "gelu_backward(Tensor gradient, Tensor x, str approximate) -> Tensor",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=lambda gradient, x, approximate: torch.empty_like(x),
    on_cuda=TRITON.function("backward", _plain_backward),
)
differentiable("gelu", _differentiate, _save)
