"""RMSNorm: x / √(mean of x² + eps), times a weight, over the last dimension. LayerNorm without its mean and its bias.

    y = rms_norm(x, weight)                  # what torch.nn.functional.rms_norm gives

A row is read from memory once, forward and backward: its squares are summed and it is written while it lies in the
cache. 1/√(mean of x² + eps) of each row is kept, in float32. The gradient of the weight is summed over parts of the
rows, and then over the parts: as many for one shape, whatever the threads, and so the numbers are the same too. On a
processor rows whose squares are no floats come out right, where torch makes zeros of them.

On a processor torch composes it of single functions, and each is a pass over memory. On an accelerator it is Triton's
to compile where Triton is installed (rms_norm_triton.py), and torch's own elsewhere.

Source: Zhang and Sennrich 2019, arXiv:1910.07467.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.accelerated import InTriton
from hasten.kernels.by_rows import taking_rows
from hasten.kernels.operators import (
    LIBRARY,
    Compiled,
    check_columns,
    differentiable_once,
    fake_of_parameter,
    float32_room,
    in_float32,
    of_parameter,
    operator,
    parts_of,
)

_COMPILED = Compiled(Path(__file__).with_suffix(".cpp"))
_TRITON = InTriton(f"{__name__}_triton", lambda form, device: form.forward(torch.zeros(1, 2, device=device), None, 1.0))
why_plain, why_plain_on = _COMPILED.why_plain, _TRITON.why_plain


def rms_norm(x: Tensor, weight: Tensor | None = None, eps: float | None = None) -> Tensor:
    """Of any shape and floating-point format; the same come out. weight: (width,), in that format or in float32. eps:
    as torch has it, the smallest step from 1 in the format that is computed in: float32, or float64 for itself.

    Differentiable once. Raises ValueError for a weight of another shape.
    """
    check_columns(x, weight=weight)
    if x.device.type not in ("cpu", "cuda"):
        return functional.rms_norm(x, x.shape[-1:], weight, eps).to(x.dtype)
    y, _ = _rms_norm(x, weight, torch.finfo(_wide(x)).eps if eps is None else eps)
    return y


def _wide(x: Tensor) -> torch.dtype:
    """The format that is computed in."""
    return torch.promote_types(x.dtype, torch.float32)


def _takes(x: Tensor, weight: Tensor | None) -> bool:
    return _COMPILED.takes(x) and (weight is None or weight.dtype in (x.dtype, torch.float32))


def _torch_takes(x: Tensor, weight: Tensor | None) -> bool:
    """Whether torch's own is one pass on an accelerator."""
    return x.is_cuda and x.numel() > 0 and (weight is None or weight.dtype == x.dtype)


def _plain(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    wide = x.to(_wide(x))
    inverse = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    y = wide * inverse if weight is None else wide * inverse * weight
    return y.to(x.dtype).contiguous(), inverse


def _on_cpu(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    if not _takes(x, weight):
        return _plain(x, weight, eps)
    y, inverse = _empty(x)
    _COMPILED(
        "forward", x.contiguous(), in_float32(weight, 1.0, x), y, inverse, inverse.numel(), x.shape[-1], float(eps)
    )
    return y, inverse


def _on_cuda(x: Tensor, weight: Tensor | None, eps: float) -> tuple[Tensor, Tensor]:
    found = taking_rows(_TRITON, [x], [weight])
    if found is not None:
        return found.forward(x, weight, eps)
    if not _torch_takes(x, weight):
        return _plain(x, weight, eps)
    return torch.ops.aten._fused_rms_norm(x.contiguous(), x.shape[-1:], weight, eps)


def _empty(x: Tensor) -> tuple[Tensor, Tensor]:
    """What is normed, and 1/√(mean of x² + eps)."""
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    return y, x.new_empty((*x.shape[:-1], 1), dtype=_wide(x))


def _plain_backward(gradient: Tensor, x: Tensor, inverse: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    unit = x.to(_wide(x)) * inverse
    given = gradient.to(_wide(x))
    weighted = given if weight is None else given * weight
    to = (weighted - unit * (weighted * unit).mean(-1, keepdim=True)) * inverse
    of_weight = (given * unit).reshape(-1, x.shape[-1]).sum(0) if x.shape[-1] else x.new_empty(0)
    return to.to(x.dtype).contiguous(), of_parameter(of_weight, weight, x)


def _backward_on_cpu(gradient: Tensor, x: Tensor, inverse: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    if not (_takes(x, weight) and gradient.dtype == x.dtype):
        return _plain_backward(gradient, x, inverse, weight)
    rows, width = inverse.numel(), x.shape[-1]
    parts = parts_of(rows)
    x = x.contiguous()
    to = torch.empty_like(x)
    of_weight, room = float32_room(x, width), float32_room(x, parts, width)
    _COMPILED(
        "backward",
        gradient.contiguous(),
        x,
        inverse,
        in_float32(weight, 1.0, x),
        to,
        of_weight,
        room,
        parts,
        rows,
        width,
    )
    return to, of_parameter(of_weight, weight, x)


def _backward_on_cuda(gradient: Tensor, x: Tensor, inverse: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    found = taking_rows(_TRITON, [x, gradient], [weight])
    if found is not None:
        return found.backward(gradient, x, inverse, weight)
    if not (_torch_takes(x, weight) and gradient.dtype == x.dtype):
        return _plain_backward(gradient, x, inverse, weight)
    to, of_weight = torch.ops.aten._fused_rms_norm_backward(
        gradient.contiguous(), x.contiguous(), x.shape[-1:], inverse, weight, [True, weight is not None]
    )
    return to, of_parameter(of_weight, weight, x)


def _fake_backward(gradient: Tensor, x: Tensor, inverse: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x, memory_format=torch.contiguous_format), fake_of_parameter(weight, x)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    x, weight, _ = inputs
    _, inverse = output
    ctx.save_for_backward(x, inverse, weight)
    ctx.mark_non_differentiable(inverse)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    if gradient is None:
        return None, None, None
    x, inverse, weight = ctx.saved_tensors
    to, of_weight = _backward(gradient, x, inverse, weight)
    return to, None if weight is None else of_weight, None


_rms_norm = operator(
    "rms_norm(Tensor x, Tensor? weight, float eps) -> (Tensor, Tensor)",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda x, weight, eps: _empty(x),
)
_backward = operator(
    "rms_norm_backward(Tensor gradient, Tensor x, Tensor inverse, Tensor? weight) -> (Tensor, Tensor)",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=_fake_backward,
)
LIBRARY.impl("rms_norm", _on_cuda, "CUDA")
LIBRARY.impl("rms_norm_backward", _backward_on_cuda, "CUDA")
torch.library.register_autograd("hasten::rms_norm", _differentiate, setup_context=_keep, lib=LIBRARY)
differentiable_once("rms_norm")
