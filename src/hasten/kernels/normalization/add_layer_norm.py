"""A residual sum followed by LayerNorm, as in a transformer block; or LayerNorm alone.

    total, normed = add_layer_norm(x, residual, weight, bias)   # x + residual, and its LayerNorm
    normed = layer_norm(x, weight, bias)                        # what torch.nn.functional.layer_norm gives

Each row, which is the last dimension, becomes (x - mean) / √(variance + eps), times the weight, plus the bias. A row is
read from memory once: it is added, summed, normalized and written while it lies in the processor's cache. Mean and
1/√(variance + eps) of each row are saved in float32, so backward reads a row once as well. One pass takes both the
gradient that reaches the sum through LayerNorm and the gradient that reaches it elsewhere.

The gradients of weight and bias are summed over parts of the rows and then over the parts. The number of parts follows
from the shape, so the result does not depend on the number of threads. A row whose squares overflow float32 becomes
NaN. The C++ form is for processors; on an accelerator the plain form calls torch's LayerNorm.

Record: records/kernels-add_layer_norm-float32-24/2-cores-amd-epyc (1.24 times torch's own).

Source: Ba, Kiros and Hinton 2016, arXiv:1607.06450.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from hasten.kernels.operators import Compiled, dense_like, differentiable, operator, why_plain_on

Maybe = Tensor | None
Outputs = tuple[Tensor, Tensor, Tensor, Tensor]
CPP = Compiled(Path(__file__).with_suffix(".cpp"))
why_plain = partial(why_plain_on, cpp=CPP)


def add_layer_norm(
    x: Tensor, residual: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5
) -> tuple[Tensor, Tensor]:
    """x + residual, and its LayerNorm over the last dimension. x, residual: of one shape. weight, bias: (width,), in
    the dtype of the sum or in float32.

    Differentiable once. Raises ValueError for other shapes.
    """
    if x.shape != residual.shape:
        raise ValueError(f"x has the shape {tuple(x.shape)}, and residual {tuple(residual.shape)}; they must be equal")
    _check_columns(x, weight=weight, bias=bias)
    total, normed, _, _ = _layer_norm(x, residual, weight, bias, eps)
    return total, normed


def layer_norm(x: Tensor, weight: Tensor | None = None, bias: Tensor | None = None, eps: float = 1e-5) -> Tensor:
    """LayerNorm over the last dimension of any floating-point tensor. weight, bias: (width,), in its dtype or in
    float32.

    Differentiable once. Raises ValueError for other shapes.
    """
    _check_columns(x, weight=weight, bias=bias)
    _, normed, _, _ = _layer_norm(x, None, weight, bias, eps)
    return normed


def _check_columns(x: Tensor, **parameters: Tensor | None) -> None:
    """Raise ValueError unless each parameter that is not None has one number for each column of x."""
    for name, given in parameters.items():
        if given is not None and given.shape != x.shape[-1:]:
            raise ValueError(f"{name} has the shape {tuple(given.shape)}; for this x it needs {tuple(x.shape[-1:])}")


def _takes(x: Tensor, *parameters: Tensor | None) -> bool:
    """Not rows of one number: it is its own mean, and only the plain form returns exactly 0 for it."""
    known = all(each is None or each.dtype in (x.dtype, torch.float32) for each in parameters)
    return known and x.shape[-1] != 1 and CPP.takes(x)


def _with_weight(weight: Maybe, bias: Maybe) -> Maybe:
    """On a CPU, torch takes the dtype of what it saves from the weight."""
    return torch.ones_like(bias) if weight is None and bias is not None else weight


def _empty(x: Tensor, residual: Maybe) -> Outputs:
    """Empty tensors for the sum (without elements where there is none), the normalized rows, mean and 1/√(variance +
    eps)."""
    dtype = x.dtype if residual is None else torch.promote_types(x.dtype, residual.dtype)
    total = x.new_empty(0 if residual is None else x.shape, dtype=dtype)
    mean = x.new_empty((*x.shape[:-1], 1), dtype=torch.promote_types(dtype, torch.float32))
    return total, x.new_empty(x.shape, dtype=dtype), mean, torch.empty_like(mean)


def _plain(x: Tensor, residual: Maybe, weight: Maybe, bias: Maybe, eps: float) -> Outputs:
    rows = (x if residual is None else x + residual).contiguous()
    given = rows, x.shape[-1:], _with_weight(weight, bias), bias, eps
    normed, *moments = torch.native_layer_norm(*given)
    mean, inverse = (each.to(torch.promote_types(rows.dtype, torch.float32)) for each in moments)
    return x.new_empty(0) if residual is None else rows, normed, mean, inverse


def _on_cpu(x: Tensor, residual: Maybe, weight: Maybe, bias: Maybe, eps: float) -> Outputs:
    if residual is not None and x.dtype != residual.dtype:  # as under autocast, where a linear layer returns bfloat16
        total = (x + residual).contiguous()
        _, normed, mean, inverse = _on_cpu(total, None, weight, bias, eps)
        return total, normed, mean, inverse
    if not _takes(x, weight, bias):
        return _plain(x, residual, weight, bias, eps)
    total, normed, mean, inverse = _empty(x, residual)
    sums = (None, None) if residual is None else (residual.contiguous(), total)
    parameters = _float32_parameter(weight, 1.0, x), _float32_parameter(bias, 0.0, x)
    CPP("forward", x.contiguous(), sums[0], *parameters, sums[1], normed, mean, inverse, mean.numel(), x.shape[-1], eps)
    return total, normed, mean, inverse


def _plain_backward(
    gradient: Tensor, onto: Maybe, x: Tensor, mean: Tensor, inverse: Tensor, weight: Maybe, bias: Maybe
) -> tuple[Tensor, Tensor, Tensor]:
    scale = _with_weight(weight, bias)
    x = x.contiguous()
    if x.device.type == "cpu":  # in the dtype that torch saves them in
        mean, inverse = (each.to(x.dtype if scale is None else scale.dtype) for each in (mean, inverse))
    to, of_weight, of_bias = torch.ops.aten.native_layer_norm_backward(
        gradient.contiguous(), x, x.shape[-1:], mean, inverse, scale, bias, [True, weight is not None, bias is not None]
    )
    to = to if onto is None else to + onto
    return to, _of_parameter(of_weight, weight, x), _of_parameter(of_bias, bias, x)


def _backward_on_cpu(
    gradient: Tensor, onto: Maybe, x: Tensor, mean: Tensor, inverse: Tensor, weight: Maybe, bias: Maybe
) -> tuple[Tensor, Tensor, Tensor]:
    if not (_takes(x, weight, bias) and CPP.takes(x, gradient, gradient if onto is None else onto)):
        return _plain_backward(gradient, onto, x, mean, inverse, weight, bias)
    rows, width = mean.numel(), x.shape[-1]
    parts = min(64, -(-rows // 32))  # by the shape alone: the number of threads must not change the sums
    x, added = x.contiguous(), None if onto is None else onto.contiguous()
    to, of_weight, of_bias = torch.empty_like(x), _float32(x, width), _float32(x, width)
    given = gradient.contiguous(), added, x, mean, inverse, _float32_parameter(weight, 1.0, x)
    CPP("backward", *given, to, of_weight, of_bias, _float32(x, 2, parts, width), parts, rows, width)
    return to, _of_parameter(of_weight, weight, x), _of_parameter(of_bias, bias, x)


def _float32(like: Tensor, *shape: int) -> Tensor:
    return like.new_empty(shape, dtype=torch.float32)


def _float32_parameter(parameter: Maybe, absent: float, like: Tensor) -> Tensor:
    """A parameter as C++ takes it: float32, one number for each column; `absent` where the parameter is None."""
    if parameter is None:
        return like.new_full(like.shape[-1:], absent, dtype=torch.float32)
    return parameter.float().contiguous()


def _of_parameter(gradient: Maybe, parameter: Maybe, like: Tensor) -> Tensor:
    """A parameter's gradient in the parameter's dtype. Empty where there is no parameter, as outputs are tensors."""
    return like.new_empty(0) if gradient is None or parameter is None else gradient.to(parameter.dtype)


def _fake_backward(
    gradient: Tensor, onto: Maybe, x: Tensor, mean: Tensor, inverse: Tensor, weight: Maybe, bias: Maybe
) -> tuple[Tensor, Tensor, Tensor]:
    of_weight, of_bias = (x.new_empty(0) if each is None else torch.empty_like(each) for each in (weight, bias))
    return dense_like(x), of_weight, of_bias


def _save(ctx: Any, inputs: tuple[Any, ...], output: Outputs) -> None:
    x, residual, weight, bias, _ = inputs
    total, _, mean, inverse = output
    ctx.dtypes = x.dtype, None if residual is None else residual.dtype
    ctx.save_for_backward(x if residual is None else total, mean, inverse, weight, bias)
    ctx.mark_non_differentiable(mean, inverse)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, onto: Maybe, gradient: Maybe, *_: None) -> tuple[Maybe, ...]:
    *rows, weight, bias = ctx.saved_tensors
    if gradient is None:  # the normalized rows were not used
        of_sum, of_weight, of_bias = onto, None, None
    else:
        of_sum, of_weight, of_bias = _layer_norm_backward(gradient, onto, *rows, weight, bias)
    of_both = [None if of_sum is None or dtype is None else of_sum.to(dtype) for dtype in ctx.dtypes]
    return *of_both, None if weight is None else of_weight, None if bias is None else of_bias, None


# (x, residual, weight, bias, eps) -> the sum, the normalized rows, and mean and 1/√(variance + eps) of each.
_layer_norm = operator(
    "layer_norm(Tensor x, Tensor? residual, Tensor? weight, Tensor? bias, float eps)"
    " -> (Tensor, Tensor, Tensor, Tensor)",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=lambda x, residual, weight, bias, eps: _empty(x, residual),
)
_layer_norm_backward = operator(
    "layer_norm_backward(Tensor gradient, Tensor? onto, Tensor x, Tensor mean, Tensor inverse, Tensor? weight,"
    " Tensor? bias) -> (Tensor, Tensor, Tensor)",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=_fake_backward,
)
differentiable("layer_norm", _differentiate, _save)
