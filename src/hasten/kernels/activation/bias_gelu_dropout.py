"""dropout(gelu(x + bias), p), which follows the first linear layer of a feed-forward block, in one pass over memory.

    y = bias_gelu_dropout(x, bias, p=0.1, approximate="tanh")
    y = bias_gelu_dropout(x, bias, p=0.1, training=model.training)

Composed of torch's functions, each one is a pass over memory, and the sum, GELU's result and a mask are saved. Here
only x is saved: which elements are dropped is a function of a seed and of their position, so backward computes the
mask again. The seed is drawn from torch's generator at each call. So torch.manual_seed decides the masks,
a resumed run continues with the same ones, and an activation checkpoint drops the same elements when it is recomputed.
The masks differ from torch.nn.functional.dropout's, and torch.compile with inductor draws seeds of its own. The plain
form draws its masks from a torch generator with that seed, so they differ from those of the C++ form.

The gradient of the bias is summed in float32, over 64 parts of the rows and then over the parts. So it does not depend
on the number of threads. The C++ form is for processors; graph_rewrite.py leaves an accelerator torch's own functions.

Record: records/kernels-bias_gelu_dropout-float32-24/2-cores-amd-epyc (7.7 times torch's own).

Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; Srivastava et al. 2014, "Dropout".
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.activation.gelu import VARIANTS
from hasten.kernels.operators import Compiled, dense_like, differentiable, operator, why_plain_on

CPP = Compiled(Path(__file__).with_suffix(".cpp"))
_PARTS = 64  # of the rows, as in the C++ file
why_plain = partial(why_plain_on, cpp=CPP)


def bias_gelu_dropout(
    x: Tensor,
    bias: Tensor | None,
    p: float = 0.5,
    *,
    training: bool = True,
    approximate: str = "none",
    seed: Tensor | None = None,
) -> Tensor:
    """x: [..., width]; bias: [width]. The result is dense and has x's shape and dtype. seed: one int64 on the CPU,
    drawn from torch's generator where it is None and something may be dropped.

    Differentiable once, by x and bias. Raises ValueError for an approximate, p, bias or seed of another kind.
    """
    if approximate not in VARIANTS:
        raise ValueError(f"approximate is {approximate!r}; it can be none or tanh")
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}; it must be between 0 and 1")
    if not x.dim() or (bias is not None and bias.shape != x.shape[-1:]):
        raise ValueError(f"the bias is {_shape(bias)} and x is {_shape(x)}; it needs one number for each column of x")
    if seed is not None and (seed.shape, seed.dtype, seed.device.type) != ((), torch.int64, "cpu"):
        raise ValueError(f"the seed is {seed.dtype} {_shape(seed)} on {seed.device}; it must be one int64 on the CPU")
    p = float(p) if training else 0.0
    return _bias_gelu_dropout(x, bias, _seed(p) if seed is None else seed, p, approximate)


def _seed(p: float) -> Tensor:
    if 0 < p < 1:
        return torch.randint(2**63 - 1, (), device="cpu")
    return torch.zeros((), dtype=torch.int64, device="cpu")  # all or nothing is dropped


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)


def _as_rows(x: Tensor) -> tuple[int, int]:
    """The number of rows, and of columns."""
    width = x.shape[-1]
    return x.numel() // max(width, 1), width


def _dropping(p: float) -> tuple[int, float]:
    """The 32-bit threshold below which an element is dropped, and the factor for the others. Where p is 1 the factor is
    0, and nothing has to be drawn."""
    threshold = round(p * 2**32)
    return (threshold, 1 / (1 - p)) if threshold < 2**32 else (0, 0.0)


def _dropped(tensor: Tensor, seed: Tensor, p: float) -> Tensor:
    threshold, scale = _dropping(p)
    if not threshold:
        return tensor * scale
    generator = torch.Generator(tensor.device).manual_seed(int(seed))
    stay = torch.randint(2**32, tensor.shape, generator=generator, device=tensor.device) >= threshold
    return torch.where(stay, tensor * scale, tensor * 0)


def _shifted(x: Tensor, bias: Tensor | None) -> Tensor:
    return x.contiguous() if bias is None else x.contiguous() + bias.to(x.dtype)


def _plain(x: Tensor, bias: Tensor | None, seed: Tensor, p: float, approximate: str) -> Tensor:
    return _dropped(functional.gelu(_shifted(x, bias), approximate=approximate), seed, p)


def _plain_backward(
    gradient: Tensor, x: Tensor, bias: Tensor | None, seed: Tensor, p: float, approximate: str
) -> tuple[Tensor, Tensor]:
    through = _dropped(gradient.contiguous(), seed, p)
    to = torch.ops.aten.gelu_backward(through, _shifted(x, bias), approximate=approximate)
    summed = to.view(_as_rows(x)).sum(0, dtype=torch.promote_types(x.dtype, torch.float32))
    return to, summed.to(x.dtype if bias is None else bias.dtype)


def _float32_bias(x: Tensor, bias: Tensor | None) -> Tensor:
    """As C++ takes it: float32; zeros for None."""
    return x.new_zeros(x.shape[-1], dtype=torch.float32) if bias is None else bias.float().contiguous()


def _on_cpu(x: Tensor, bias: Tensor | None, seed: Tensor, p: float, approximate: str) -> Tensor:
    if not CPP.takes(x):
        return _plain(x, bias, seed, p, approximate)
    y = dense_like(x)
    CPP(VARIANTS[approximate], x.contiguous(), _float32_bias(x, bias), y, *_as_rows(x), int(seed), *_dropping(p))
    return y


def _backward_on_cpu(
    gradient: Tensor, x: Tensor, bias: Tensor | None, seed: Tensor, p: float, approximate: str
) -> tuple[Tensor, Tensor]:
    if not CPP.takes(x, gradient):
        return _plain_backward(gradient, x, bias, seed, p, approximate)
    to = dense_like(x)
    sums = x.new_zeros(_PARTS, x.shape[-1], dtype=torch.float32)
    name = f"{VARIANTS[approximate]}_backward"
    given = gradient.contiguous(), x.contiguous(), _float32_bias(x, bias)
    CPP(name, *given, to, sums, *_as_rows(x), int(seed), *_dropping(p))
    summed = sums[0].to(x.dtype if bias is None else bias.dtype, copy=True)  # a copy, to free the other parts
    return to, summed


def _save(ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor, float, str], output: Tensor) -> None:
    x, bias, seed, ctx.p, ctx.approximate = inputs
    ctx.save_for_backward(x, bias, seed)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
    x, bias, seed = ctx.saved_tensors
    to, summed = _bias_gelu_dropout_backward(gradient, x, bias, seed, ctx.p, ctx.approximate)
    return to, None if bias is None else summed, None, None, None


_bias_gelu_dropout = operator(
    "bias_gelu_dropout(Tensor x, Tensor? bias, Tensor seed, float p, str approximate) -> Tensor",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda x, bias, seed, p, approximate: dense_like(x),
)
_bias_gelu_dropout_backward = operator(
    "bias_gelu_dropout_backward(Tensor gradient, Tensor x, Tensor? bias, Tensor seed, float p, str approximate)"
    " -> (Tensor, Tensor)",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=lambda gradient, x, bias, seed, p, approximate: (
        dense_like(x),
        (x if bias is None else bias).new_empty(x.shape[-1]),
    ),
)
differentiable("bias_gelu_dropout", _differentiate, _save)
