"""Scaled dot-product attention, softmax(Q Kᵀ · scale) V for each head, in bfloat16 on processors.

    y = attention(query, key, value)                   # as torch.nn.functional.scaled_dot_product_attention
    y = attention(query, key, value, causal=True)      # no query sees a later key

On a processor without AMX torch's own is slower in bfloat16 than in float32, because its library repacks every small
matrix for each product. Here one thread takes a head. It multiplies matrices that fit a core's cache, with the
instruction that multiplies pairs of bfloat16 numbers and sums them in float32. For each query two numbers are saved for
backward instead of the scores: the maximum score, and the factor that makes its weights sum to 1.

torch's own is used on an accelerator, for other dtypes, and on processors with AMX or without that instruction. So the
operator has no plain form.

Record: records/kernels-attention-bfloat16-22/2-cores-amd-epyc (2.4 times torch's own).

Source: Dao et al. 2022, arXiv:2205.14135, for what backward recomputes, and its formulas (appendix B.2).
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.operators import Compiled, differentiable, operator, why_plain_on

CPP = Compiled(Path(__file__).with_suffix(".cpp"), lacking="AVX512-BF16 instructions, or has the faster AMX")
DIMENSIONS = 4  # batches, heads, rows, columns
why_plain = partial(why_plain_on, cpp=CPP)


def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """query: [batch, heads, queries, width]. key: [batch, heads, keys, width]. value: [batch, heads, keys, columns].
    Returns [batch, heads, queries, columns], in the one floating-point dtype of all three. Under autocast they are cast
    as torch casts them.

    scale: 1 / √width where it is None. causal: query i sees keys 0 to i. Differentiable once: gradients of gradients
    raise RuntimeError. torch computes other shapes and dtypes, and raises its own errors.
    """
    query, key, value = _autocast(query), _autocast(key), _autocast(value)
    if not _fits(query, key, value) or not _may_use_cpp():
        return functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
    return _attention(query, key, value, causal, query.shape[-1] ** -0.5 if scale is None else scale)[0]


@torch.compiler.assume_constant_result
def _may_use_cpp() -> bool:
    """Whether the C++ form may be used. A user who chooses another implementation by sdpa_kernel gets that one."""
    return torch.backends.cuda.flash_sdp_enabled() and CPP.why_plain() is None


def _autocast(tensor: Tensor) -> Tensor:
    """Cast as autocast casts the input of a matrix product."""
    device = tensor.device.type
    if not torch.is_autocast_enabled(device) or tensor.dtype == torch.float64:
        return tensor
    return tensor.to(torch.get_autocast_dtype(device))


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    for each in (query, key, value):
        if each.is_nested or each.dim() != DIMENSIONS or not each.is_cpu or each.dtype != torch.bfloat16:
            return False
    (*batch, _, width), (*of_keys, keys, key_width), (*of_values, values, columns) = (
        each.shape for each in (query, key, value)
    )
    alike = batch == of_keys == of_values and keys == values and width == key_width == columns
    return alike and width % 2 == 0 and query.numel() > 0 and key.numel() > 0


def _forward(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    y, sums = _empty(query, key, value, causal, scale)
    _call("forward", [query, key, value, y], sums, causal, scale)
    return y, sums


def _backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, y: Tensor, sums: Tensor, causal: bool, scale: float
) -> tuple[Tensor, ...]:
    to = _empty_gradients(gradient, query, key, value)
    _call("backward", [query, key, value, y, gradient, *to], sums, causal, scale)
    return to


def _call(name: str, heads: list[Tensor], sums: Tensor, causal: bool, scale: float) -> None:
    """heads: queries, keys, values, and further tensors of these shapes that the function takes."""
    rows = [each if each.stride(-1) == 1 else each.contiguous() for each in heads]  # C++ reads whole rows
    strides = torch.tensor([each.stride()[:-1] for each in rows])
    batches, number, queries, width = rows[0].shape
    sizes = batches, number, queries, rows[1].shape[-2], width
    CPP(name, *rows, sums, strides, *sizes, int(causal), float(scale))


def _empty(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """In memory the heads of a query lie next to each other, as the output projection reads them."""
    sums = torch.promote_types(query.dtype, torch.float32)
    return _by_rows(query), query.new_empty((*query.shape[:-1], 2), dtype=sums)


def _empty_gradients(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return _by_rows(query), _by_rows(key), _by_rows(value)


def _by_rows(like: Tensor) -> Tensor:
    return like.new_empty(like.transpose(1, 2).shape).transpose(1, 2)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *given, ctx.causal, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*given, *output)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *_attention_backward(gradient, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None


# (query, key, value, causal, scale) -> y, and for each query its maximum score and the factor of its weights.
_attention = operator(
    "attention(Tensor query, Tensor key, Tensor value, bool causal, float scale) -> (Tensor y, Tensor sums)",
    on_cpu=_forward,
    fake=_empty,
)
_attention_backward = operator(
    "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor y, Tensor sums,"
    " bool causal, float scale) -> (Tensor of_query, Tensor of_key, Tensor of_value)",
    on_cpu=_backward,
    fake=_empty_gradients,
)
differentiable("attention", _differentiate, _save)
