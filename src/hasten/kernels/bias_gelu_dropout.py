"""What follows the first half of a feed-forward layer: dropout(gelu(x + bias), p), in one pass over memory.

    y = bias_gelu_dropout(x, bias, p=0.1, approximate="tanh")
    y = bias_gelu_dropout(x, bias, p=0.1, training=model.training)

Composed of torch's functions it is a pass for each of them, and keeps the sum, what gelu gives and a mask. Here nothing
is kept but x: which numbers are dropped is a function of a seed and of where they stand (philox.py), and backward makes
it again. The seed is drawn from torch's generator at each call, so torch.manual_seed decides the masks, a run that goes
on from its generator's state goes on with the same ones, and an activation checkpoint that is computed again drops the
same. They are other ones than torch.nn.functional.dropout would draw of that state; and torch.compile with inductor
draws seeds of its own, as it does all random numbers.

The bias's gradient is summed in float32, over 64 parts of the rows and then over these: by whatever threads, the same.

Source: Hendrycks and Gimpel 2016, arXiv:1606.08415; Srivastava et al. 2014, "Dropout".
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.accelerated import InTriton
from hasten.kernels.operators import LIBRARY, Compiled, differentiable_once, operator
from hasten.kernels.philox import drawn

_COMPILED = Compiled(Path(__file__).with_suffix(".cpp"))
_FORMS = {"none": "exact", "tanh": "tanh"}  # in the C++ file
_PARTS = 64  # as there
_TRITON = InTriton(
    f"{__name__}_triton", lambda form, device: form.forward(torch.zeros(1, 1, device=device), None, 1, 1, 2.0, "tanh")
)
why_plain, why_plain_on = _COMPILED.why_plain, _TRITON.why_plain


def bias_gelu_dropout(
    x: Tensor,
    bias: Tensor | None,
    p: float = 0.5,
    *,
    training: bool = True,
    approximate: str = "none",
    seed: Tensor | None = None,
) -> Tensor:
    """x: [..., width]; bias: [width]. What comes out is dense, of x's shape and format. seed: one int64 on a processor,
    drawn from torch's generator where it is None and something may be dropped.

    Differentiable once, by x and bias. Raises ValueError for a form, a share p, a bias or a seed that cannot be.
    """
    if approximate not in _FORMS:
        raise ValueError(f"approximate is {approximate!r}, and none and tanh are the forms")
    if not 0 <= p <= 1:
        raise ValueError(f"p is {p}, and a share lies between 0 and 1")
    if not x.dim() or (bias is not None and bias.shape != x.shape[-1:]):
        raise ValueError(f"the bias is {_shape(bias)} and x is {_shape(x)}: it is one number for each of x's last axis")
    if seed is not None and (seed.shape, seed.dtype, seed.device.type) != ((), torch.int64, "cpu"):
        raise ValueError(f"the seed is {seed.dtype} {_shape(seed)} on {seed.device}: it is one int64 on a processor")
    p = float(p) if training else 0.0
    return _bias_gelu_dropout(x, bias, _seed(p) if seed is None else seed, p, approximate)


def _seed(p: float) -> Tensor:
    if 0 < p < 1:
        return torch.randint(2**63 - 1, (), device="cpu")
    return torch.zeros((), dtype=torch.int64, device="cpu")  # nothing is left to chance


def _shape(tensor: Tensor | None) -> list[int] | None:
    return None if tensor is None else list(tensor.shape)


def _as_rows(x: Tensor) -> tuple[int, int]:
    """How many rows, and how wide."""
    width = x.shape[-1]
    return x.numel() // max(width, 1), width


def _dropping(p: float) -> tuple[int, float]:
    """Below which number of 32 bits is dropped, and what is kept is multiplied by. Where all is dropped nothing has to
    be drawn for it."""
    threshold = round(p * 2**32)
    return (threshold, 1 / (1 - p)) if threshold < 2**32 else (0, 0.0)


def _dropped(tensor: Tensor, seed: Tensor, p: float) -> Tensor:
    threshold, scale = _dropping(p)
    if not threshold:
        return tensor * scale
    kept = drawn(int(seed), *_as_rows(tensor), tensor.device).view(tensor.shape) >= threshold
    return torch.where(kept, tensor * scale, tensor * 0)


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


def _as_given(x: Tensor, bias: Tensor | None) -> Tensor:
    """In float32, whatever x is in; of none, zeros."""
    return x.new_zeros(x.shape[-1], dtype=torch.float32) if bias is None else bias.float().contiguous()


def _on_cpu(x: Tensor, bias: Tensor | None, seed: Tensor, p: float, approximate: str) -> Tensor:
    if not _COMPILED.takes(x):
        return _plain(x, bias, seed, p, approximate)
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    _COMPILED(_FORMS[approximate], x.contiguous(), _as_given(x, bias), y, *_as_rows(x), int(seed), *_dropping(p))
    return y


def _backward_on_cpu(
    gradient: Tensor, x: Tensor, bias: Tensor | None, seed: Tensor, p: float, approximate: str
) -> tuple[Tensor, Tensor]:
    if not _COMPILED.takes(x, gradient):
        return _plain_backward(gradient, x, bias, seed, p, approximate)
    to = torch.empty_like(x, memory_format=torch.contiguous_format)
    sums = x.new_zeros(_PARTS, x.shape[-1], dtype=torch.float32)
    name = f"{_FORMS[approximate]}_backward"
    given = gradient.contiguous(), x.contiguous(), _as_given(x, bias)
    _COMPILED(name, *given, to, sums, *_as_rows(x), int(seed), *_dropping(p))
    return to, sums[0].to(x.dtype if bias is None else bias.dtype, copy=True)  # the others' memory goes


def _on_cuda(x: Tensor, bias: Tensor | None, seed: Tensor, p: float, approximate: str) -> Tensor:
    found = _TRITON.taking(x)
    if found is None:
        return _plain(x, bias, seed, p, approximate)
    return found.forward(x.reshape(_as_rows(x)), bias, int(seed), *_dropping(p), approximate).view(x.shape)


def _backward_on_cuda(
    gradient: Tensor, x: Tensor, bias: Tensor | None, seed: Tensor, p: float, approximate: str
) -> tuple[Tensor, Tensor]:
    found = _TRITON.taking(x, gradient)
    if found is None:
        return _plain_backward(gradient, x, bias, seed, p, approximate)
    rows = (each.reshape(_as_rows(x)) for each in (gradient, x))
    to, summed = found.backward(*rows, bias, int(seed), *_dropping(p), approximate)
    return to.view(x.shape), summed.to(x.dtype if bias is None else bias.dtype)


def _keep(ctx: Any, inputs: tuple[Tensor, Tensor | None, Tensor, float, str], output: Tensor) -> None:
    x, bias, seed, ctx.p, ctx.approximate = inputs
    ctx.save_for_backward(x, bias, seed)


def _differentiate(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
    x, bias, seed = ctx.saved_tensors
    to, summed = _bias_gelu_dropout_backward(gradient, x, bias, seed, ctx.p, ctx.approximate)
    return to, None if bias is None else summed, None, None, None


def _dense(x: Tensor) -> Tensor:
    return torch.empty_like(x, memory_format=torch.contiguous_format)


_bias_gelu_dropout = operator(
    "bias_gelu_dropout(Tensor x, Tensor? bias, Tensor seed, float p, str approximate) -> Tensor",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda x, bias, seed, p, approximate: _dense(x),
)
_bias_gelu_dropout_backward = operator(
    "bias_gelu_dropout_backward(Tensor gradient, Tensor x, Tensor? bias, Tensor seed, float p, str approximate)"
    " -> (Tensor, Tensor)",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=lambda gradient, x, bias, seed, p, approximate: (
        _dense(x),
        (x if bias is None else bias).new_empty(x.shape[-1]),
    ),
)
LIBRARY.impl("bias_gelu_dropout", _on_cuda, "CUDA")
LIBRARY.impl("bias_gelu_dropout_backward", _backward_on_cuda, "CUDA")
torch.library.register_autograd("hasten::bias_gelu_dropout", _differentiate, setup_context=_keep, lib=LIBRARY)
differentiable_once("bias_gelu_dropout")
