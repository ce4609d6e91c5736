"""A residual added and LayerNorm, as a transformer does one after the other; or LayerNorm alone.

    total, normed = add_layer_norm(x, residual, weight, bias)   # x + residual, and its LayerNorm
    normed = layer_norm(x, weight, bias)                        # what torch.nn.functional.layer_norm gives

Each row of numbers, the last dimension, is brought to mean 0 and variance 1: (x - mean) / √(variance + eps), times the
weight, plus the bias. A row is read from memory once: added, summed, compared with its mean, and written, while it
lies in the cache. Mean and 1/√(variance + eps) of each row are kept, in float32, and so backward reads a row once as
well. It takes in one go the gradient that reaches the sum through LayerNorm and the one that reaches it elsewhere.

The gradients of weight and bias are summed over parts of the rows, and then over the parts: as many for one shape,
whatever the threads, and so the numbers are the same too. On a processor rows whose squares are no floats come out
right, where those of torch are NaN.

Composed of torch's functions each step of the formula is a pass over memory. On an accelerator it is Triton's to
compile where Triton is installed (add_layer_norm_triton.py), and torch's own LayerNorm elsewhere.

Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
"""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor

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
_TRITON = InTriton(
    f"{__name__}_triton", lambda form, device: form.layer_norm(torch.zeros(1, 2, device=device), None, None, 1.0)
)
why_plain, why_plain_on = _COMPILED.why_plain, _TRITON.why_plain


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """x + residual, and its LayerNorm over the last dimension. x, residual: of one shape. weight, bias: (width,), in
    the format of the sum or in float32.

    Differentiable once. Raises ValueError for other shapes.
    """
    if x.shape != residual.shape:
        raise ValueError(f"x is of shape {tuple(x.shape)}, and residual of {tuple(residual.shape)}")
    check_columns(x, weight=weight, bias=bias)
    total, normed, _, _ = _add_layer_norm(x, residual, weight, bias, eps)
    return total, normed


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last dimension of any floating-point tensor. weight, bias: (width,), in its format or in
    float32.

    Differentiable once. Raises ValueError for other shapes.
    """
    check_columns(x, weight=weight, bias=bias)
    normed, _, _ = _layer_norm(x, weight, bias, eps)
    return normed


def _kept(x: Tensor) -> torch.dtype:
    """The format of mean and 1/√(variance + eps)."""
    return torch.promote_types(x.dtype, torch.float32)


def _takes(x: Tensor, *parameters: Tensor | None) -> bool:
    """A row of one number is its own mean, and in the plain form nothing is left of it, not even a rounding."""
    known = all(each is None or each.dtype in (x.dtype, torch.float32) for each in parameters)
    return known and x.shape[-1] != 1 and _COMPILED.takes(x)


def _in_triton(*rows: Tensor, parameters: tuple[Tensor | None, ...]) -> ModuleType | None:
    return None if rows[0].shape[-1] == 1 else taking_rows(_TRITON, rows, parameters)


def _with_weight(weight: Tensor | None, bias: Tensor | None) -> Tensor | None:
    """torch on a processor takes the format of what it keeps from the weight."""
    return torch.ones_like(bias) if weight is None and bias is not None else weight


def _plain(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    weight = _with_weight(weight, bias)
    normed, mean, inverse = torch.native_layer_norm(x.contiguous(), x.shape[-1:], weight, bias, eps)
    return normed, mean.to(_kept(x)), inverse.to(_kept(x))


def _on_cpu(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    if not _takes(x, weight, bias):
        return _plain(x, weight, bias, eps)
    normed, mean, inverse = _empty(x)
    _run_forward(x, None, weight, bias, None, normed, mean, inverse, eps)
    return normed, mean, inverse


def _on_cuda(x: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    found = _in_triton(x, parameters=(weight, bias))
    return _plain(x, weight, bias, eps) if found is None else found.layer_norm(x, weight, bias, eps)


def _add_plain(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = (x + residual).contiguous()
    return total, *_plain(total, weight, bias, eps)


def _add_on_cpu(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if x.dtype != residual.dtype:  # as under autocast, which a layer comes out of in bfloat16
        total = (x + residual).contiguous()
        return total, *_on_cpu(total, weight, bias, eps)
    if not _takes(x, weight, bias):
        return _add_plain(x, residual, weight, bias, eps)
    normed, mean, inverse = _empty(x)
    total = torch.empty_like(normed)
    _run_forward(x, residual, weight, bias, total, normed, mean, inverse, eps)
    return total, normed, mean, inverse


def _add_on_cuda(
    x: Tensor, residual: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    if x.dtype != residual.dtype:
        total = (x + residual).contiguous()
        return total, *_on_cuda(total, weight, bias, eps)
    found = _in_triton(x, residual, parameters=(weight, bias))
    form = _add_plain if found is None else found.add_layer_norm
    return form(x, residual, weight, bias, eps)


def _run_forward(
    x: Tensor,
    residual: Tensor | None,
    weight: Tensor | None,
    bias: Tensor | None,
    total: Tensor | None,
    normed: Tensor,
    mean: Tensor,
    inverse: Tensor,
    eps: float,
) -> None:
    _COMPILED(
        "forward",
        x.contiguous(),
        None if residual is None else residual.contiguous(),
        in_float32(weight, 1.0, x),
        in_float32(bias, 0.0, x),
        total,
        normed,
        mean,
        inverse,
        mean.numel(),
        x.shape[-1],
        eps,
    )


def _empty(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What is normed, mean and 1/√(variance + eps)."""
    normed = torch.empty_like(x, memory_format=torch.contiguous_format)
    mean = x.new_empty((*x.shape[:-1], 1), dtype=_kept(x))
    return normed, mean, torch.empty_like(mean)


def _plain_backward(
    gradient: Tensor,
    onto: Tensor | None,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    scale = _with_weight(weight, bias)
    x = x.contiguous()
    if x.device.type == "cpu":  # in the format that torch keeps them in
        mean, inverse = (each.to(x.dtype if scale is None else scale.dtype) for each in (mean, inverse))
    to, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
        gradient.contiguous(), x, x.shape[-1:], mean, inverse, scale, bias, [True, weight is not None, bias is not None]
    )
    to = to if onto is None else to + onto
    return to, of_parameter(of_weight, weight, x), of_parameter(of_bias, bias, x)


def _backward_on_cpu(
    gradient: Tensor,
    onto: Tensor | None,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    if not (_takes(x, weight, bias) and _COMPILED.takes(x, gradient, gradient if onto is None else onto)):
        return _plain_backward(gradient, onto, x, mean, inverse, weight, bias)
    rows, width = mean.numel(), x.shape[-1]
    parts = parts_of(rows)
    x = x.contiguous()
    to, of_weight, of_bias = torch.empty_like(x), float32_room(x, width), float32_room(x, width)
    _COMPILED(
        "backward",
        gradient.contiguous(),
        None if onto is None else onto.contiguous(),
        x,
        mean,
        inverse,
        in_float32(weight, 1.0, x),
        to,
        of_weight,
        of_bias,
        float32_room(x, 2, parts, width),
        parts,
        rows,
        width,
    )
    return to, of_parameter(of_weight, weight, x), of_parameter(of_bias, bias, x)


def _backward_on_cuda(
    gradient: Tensor,
    onto: Tensor | None,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    found = _in_triton(x, gradient, gradient if onto is None else onto, parameters=(weight, bias))
    form = _plain_backward if found is None else found.backward
    return form(gradient, onto, x, mean, inverse, weight, bias)


def _fake_backward(
    gradient: Tensor,
    onto: Tensor | None,
    x: Tensor,
    mean: Tensor,
    inverse: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    to = torch.empty_like(x, memory_format=torch.contiguous_format)
    return to, fake_of_parameter(weight, x), fake_of_parameter(bias, x)


def _fake_sum(x: Tensor, residual: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    total = x.new_empty(x.shape, dtype=torch.promote_types(x.dtype, residual.dtype))
    return total, *_empty(total)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    x, weight, bias, _ = inputs
    _, mean, inverse = output
    _keep_rows(ctx, x, mean, inverse, weight, bias)


def _keep_sum(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    x, residual, weight, bias, _ = inputs
    total, _, mean, inverse = output
    ctx.formats = x.dtype, residual.dtype
    _keep_rows(ctx, total, mean, inverse, weight, bias)


def _keep_rows(ctx: Any, x: Tensor, mean: Tensor, inverse: Tensor, weight: Tensor | None, bias: Tensor | None) -> None:
    ctx.save_for_backward(x, mean, inverse, weight, bias)
    ctx.mark_non_differentiable(mean, inverse)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    return *_gradients(ctx, gradient, None), None


def _differentiate_sum(ctx: Any, onto: Tensor | None, gradient: Tensor | None, *_: None) -> tuple[Tensor | None, ...]:
    of_sum, of_weight, of_bias = _gradients(ctx, gradient, onto)
    of_both = [None if of_sum is None else of_sum.to(each) for each in ctx.formats]
    return *of_both, of_weight, of_bias, None


def _gradients(ctx: Any, gradient: Tensor | None, onto: Tensor | None) -> tuple[Tensor | None, ...]:
    if gradient is None:  # nothing was made of what is normed
        return onto, None, None
    *rows, weight, bias = ctx.saved_tensors
    to, of_weight, of_bias = _backward(gradient, onto, *rows, weight, bias)
    return to, None if weight is None else of_weight, None if bias is None else of_bias


_layer_norm = operator(
    "layer_norm(Tensor x, Tensor? weight, Tensor? bias, float eps) -> (Tensor, Tensor, Tensor)",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda x, weight, bias, eps: _empty(x),
)
_add_layer_norm = operator(
    "add_layer_norm(Tensor x, Tensor residual, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    plain=_add_plain,
    on_cpu=_add_on_cpu,
    fake=lambda x, residual, weight, bias, eps: _fake_sum(x, residual),
)
_backward = operator(
    "layer_norm_backward(Tensor gradient, Tensor? onto, Tensor x, Tensor mean, Tensor inverse, Tensor? weight,"
    " Tensor? bias) -> (Tensor, Tensor, Tensor)",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=_fake_backward,
)
LIBRARY.impl("layer_norm", _on_cuda, "CUDA")
LIBRARY.impl("add_layer_norm", _add_on_cuda, "CUDA")
LIBRARY.impl("layer_norm_backward", _backward_on_cuda, "CUDA")
torch.library.register_autograd("hasten::layer_norm", _differentiate, setup_context=_keep, lib=LIBRARY)
torch.library.register_autograd("hasten::add_layer_norm", _differentiate_sum, setup_context=_keep_sum, lib=LIBRARY)
differentiable_once("layer_norm")
