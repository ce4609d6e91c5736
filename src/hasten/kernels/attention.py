"""Attention: softmax(Q Kᵀ · scale) V, for each head by itself.

    y = attention(query, key, value)                   # as torch.nn.functional.scaled_dot_product_attention
    y = attention(query, key, value, causal=True)      # no query sees a key behind it

In bfloat16 torch's own is slower than in float32 on a processor without AMX: it multiplies small matrices by a library
that prepares each of them anew. Here each head is one thread's, and its products are made from memory that fits the
cache of a core, by the instruction that multiplies pairs of bfloat16 numbers and sums them in float32. Two numbers
of each query are kept for backward, not the scores: the greatest of these, and what shares are multiplied with.

On an accelerator, in other formats and on processors without that instruction, or with AMX, it is torch's own.

Source: Dao et al. 2022, arXiv:2205.14135, for what backward makes anew, and its formulas (appendix B.2).
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from hasten.kernels.operators import LIBRARY, Compiled, as_a_product, differentiable_once, operator

_COMPILED = Compiled(Path(__file__).with_suffix(".cpp"), lacking="the processor's own products of bfloat16 numbers")
_HEADS = 4  # dimensions: batches, heads, rows, columns
why_plain = _COMPILED.why_plain


def attention(query: Tensor, key: Tensor, value: Tensor, *, causal: bool = False, scale: float | None = None) -> Tensor:
    """query: [batch, heads, queries, width]. key: [batch, heads, keys, width]. value: [batch, heads, keys, columns].
    Of one floating-point format, that of what comes out: [batch, heads, queries, columns]. Under autocast they are cast
    as torch casts them.

    scale: 1 / √width where it is None. causal: query i sees keys 0 to i. Differentiable once. Shapes that torch takes
    besides these are torch's, and so are errors. Gradients of gradients raise RuntimeError.
    """
    query, key, value = as_a_product(query), as_a_product(key), as_a_product(value)
    if not _fits(query, key, value) or not _there():
        return functional.scaled_dot_product_attention(query, key, value, is_causal=causal, scale=scale)
    return of_heads(query, key, value, causal, query.shape[-1] ** -0.5 if scale is None else scale)[0]


@torch.compiler.assume_constant_result
def _there() -> bool:
    """Whether it may be this one: who chooses an implementation of torch's by sdpa_kernel is given that."""
    return torch.backends.cuda.flash_sdp_enabled() and why_plain() is None


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    for each in (query, key, value):
        if each.is_nested or each.dim() != _HEADS or not each.is_cpu or each.dtype != torch.bfloat16:
            return False
    (*batch, _, width), (*of_keys, keys, key_width), (*of_values, values, columns) = (
        each.shape for each in (query, key, value)
    )
    alike = batch == of_keys == of_values and keys == values and width == key_width == columns
    return alike and width % 2 == 0 and query.numel() > 0 and key.numel() > 0


def _wide(*tensors: Tensor) -> list[Tensor]:
    return [each if each.dtype == torch.float64 else each.float() for each in tensors]


def _shares(query: Tensor, key: Tensor, causal: bool, scale: float, sums: Tensor | None) -> tuple[Tensor, Tensor]:
    """Of each key in each query, and the sums; made where they are None."""
    scores = query @ key.mT
    unseen = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
    if sums is None:
        seen = scores.masked_fill(unseen, -math.copysign(math.inf, scale)) if causal else scores
        most = seen.amin(-1, keepdim=True) if scale < 0 else seen.amax(-1, keepdim=True)
    else:
        most = sums[..., :1]
    shares = ((scores - most) * scale).exp()
    shares = shares.masked_fill(unseen, 0) if causal else shares
    if sums is None:
        sums = torch.cat([most, 1 / shares.sum(-1, keepdim=True)], dim=-1)
    return shares * sums[..., 1:], sums


def _plain(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    wide_query, wide_key, wide_value = _wide(query, key, value)
    shares, sums = _shares(wide_query, wide_key, causal, scale, None)
    return _by_rows(query).copy_(shares @ wide_value), sums


def _plain_backward(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, y: Tensor, sums: Tensor, causal: bool, scale: float
) -> tuple[Tensor, ...]:
    of_y, wide_query, wide_key, wide_value, wide_y = _wide(gradient, query, key, value, y)
    shares, _ = _shares(wide_query, wide_key, causal, scale, sums)
    of_shares = of_y @ wide_value.mT
    of_scores = shares * (of_shares - (of_y * wide_y).sum(-1, keepdim=True)) * scale
    found = of_scores @ wide_key, of_scores.mT @ wide_query, shares.mT @ of_y
    to = _empty_gradients(gradient, query, key, value)
    return tuple(each.copy_(made) for each, made in zip(to, found, strict=True))


def _takes(*tensors: Tensor) -> bool:
    return _fits(*tensors[:3]) and _COMPILED.takes(*tensors)


def _on_cpu(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    if not _takes(query, key, value):
        return _plain(query, key, value, causal, scale)
    y, sums = _empty(query, key, value, causal, scale)
    _call("forward", [query, key, value, y], sums, causal, scale)
    return y, sums


def _backward_on_cpu(
    gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, y: Tensor, sums: Tensor, causal: bool, scale: float
) -> tuple[Tensor, ...]:
    given = query, key, value, y
    if not _takes(*given, gradient):
        return _plain_backward(gradient, *given, sums, causal, scale)
    to = _empty_gradients(gradient, *given)
    _call("backward", [*given, gradient, *to], sums, causal, scale)
    return to


def _call(name: str, heads: list[Tensor], sums: Tensor, causal: bool, scale: float) -> None:
    """heads: queries, keys, values and what else there is of a number for each of theirs."""
    rows = [*map(_with_rows, heads)]
    strides = torch.tensor([each.stride()[:-1] for each in rows])
    batches, number, queries, width = rows[0].shape
    sizes = batches, number, queries, rows[1].shape[-2], width
    _COMPILED(name, *rows, sums, strides, *sizes, int(causal), float(scale))


def _with_rows(heads: Tensor) -> Tensor:
    """With the numbers of a row side by side: what is read as if they were would be other numbers."""
    return heads if heads.stride(-1) == 1 else heads.contiguous()


def _empty(query: Tensor, key: Tensor, value: Tensor, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """In memory, the heads of a query lie side by side, as whoever mixes them will want them."""
    sums = torch.promote_types(query.dtype, torch.float32)
    return _by_rows(query), query.new_empty((*query.shape[:-1], 2), dtype=sums)


def _empty_gradients(gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any) -> tuple[Tensor, ...]:
    return _by_rows(query), _by_rows(key), _by_rows(value)


def _by_rows(like: Tensor) -> Tensor:
    return like.new_empty(like.transpose(1, 2).shape).transpose(1, 2)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    *given, ctx.causal, ctx.scale = inputs
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*given, *output)


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *gradients_of_heads(gradient, *ctx.saved_tensors, ctx.causal, ctx.scale), None, None


# (query, key, value, causal, scale) -> y; and of each query the greatest score, and what shares are multiplied with.
of_heads = operator(
    "attention(Tensor query, Tensor key, Tensor value, bool causal, float scale) -> (Tensor y, Tensor sums)",
    plain=_plain,
    on_cpu=_on_cpu,
    fake=_empty,
)
gradients_of_heads = operator(
    "attention_backward(Tensor gradient, Tensor query, Tensor key, Tensor value, Tensor y, Tensor sums,"
    " bool causal, float scale) -> (Tensor of_query, Tensor of_key, Tensor of_value)",
    plain=_plain_backward,
    on_cpu=_backward_on_cpu,
    fake=_empty_gradients,
)
torch.library.register_autograd("hasten::attention", _differentiate, setup_context=_keep, lib=LIBRARY)
differentiable_once("attention")
