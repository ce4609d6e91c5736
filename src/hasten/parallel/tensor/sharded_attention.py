"""The forward pass of torch's MultiheadAttention where each rank has some of the heads."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.errors import Misconfigured
from hasten.parallel.tensor.layer_exchange import Exchange, LayerExchange


def attention_of_shares(exchange: LayerExchange) -> Callable[..., tuple[Tensor, None]]:
    """Its forward pass on this rank's heads, as torch computes it on all of them. torch's own asks for a width that is
    that of all heads."""

    def forward(
        module: nn.MultiheadAttention,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, None]:
        if need_weights:
            raise Misconfigured(
                "attention weights are requested, but each process has only those of its own heads",
                where="tensor",
                fix="call the layer with need_weights=False",
            )
        copied = {id(each): exchange.begin(each) for each in (query, key, value)}  # once where they are the same
        asked = [copied[id(each)] for each in (query, key, value)]
        weight, bias = module.in_proj_weight, module.in_proj_bias
        batch_behind = not module.batch_first and query.dim() == 3
        if batch_behind:
            asked = [each.transpose(0, 1) for each in asked]
        weights, biases = weight.chunk(3), bias.chunk(3) if bias is not None else (None,) * 3
        own, keys, values = (
            functional.linear(each, part, extra).unflatten(-1, (module.num_heads, -1)).transpose(-2, -3)
            for each, part, extra in zip(asked, weights, biases, strict=True)
        )
        if attn_mask is not None and attn_mask.requires_grad:  # learned: each rank has the gradient of its heads
            attn_mask = Exchange(exchange.ranks).begin(attn_mask)
        mask = _mask(
            query.dtype, key_padding_mask, None if is_causal and key_padding_mask is None else attn_mask, module
        )
        causal, dropout = is_causal and mask is None, module.dropout if module.training else 0.0
        found = functional.scaled_dot_product_attention(own, keys, values, mask, dropout, causal)
        share = functional.linear(found.transpose(-2, -3).flatten(-2), module.out_proj.weight)
        summed = exchange.end(share.transpose(0, 1) if batch_behind else share)
        return summed if module.out_proj.bias is None else summed + module.out_proj.bias, None

    return forward


def _mask(
    dtype: torch.dtype, padding: Tensor | None, attention: Tensor | None, module: nn.MultiheadAttention
) -> Tensor | None:
    """What is added to the scores, of a shape that spreads over [batch, heads, queries, keys]; None for nothing."""
    padding, attention = _added(padding, dtype), _added(attention, dtype)
    if attention is not None and attention.dim() == 3:  # one for each head of each sample; there are others elsewhere
        raise Misconfigured(
            "the attention mask has one mask per head, but each process has only some heads",
            where="tensor",
            fix="give one mask for all heads",
        )
    if padding is not None:
        padding = padding[..., None, None, :]
    return padding if attention is None else attention if padding is None else attention + padding


def _added(mask: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    if mask is None or mask.is_floating_point():
        return mask
    return torch.zeros_like(mask, dtype=dtype).masked_fill_(mask, float("-inf"))
