"""How layers that attend compute by hasten's own attention: those that call scaled_dot_product_attention, and torch's
MultiheadAttention."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hasten.kernels.attention import attention

FUNCTION = "scaled_dot_product_attention"


def calls_attention(layer: nn.Module) -> bool:
    """Whether its own forward method does, by its code."""
    code = getattr(type(layer).forward, "__code__", None)
    return code is not None and FUNCTION in code.co_names


def attending(layer: nn.Module, *given: Any, **named: Any) -> Any:
    """What the layer's forward method gives, by hasten's attention; in torch.compile's hands by torch's, for a mode is
    where its graphs end."""
    if torch.compiler.is_compiling():
        return type(layer).forward(layer, *given, **named)
    with _Exchanging():
        return type(layer).forward(layer, *given, **named)


class _Exchanging(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        call = _attention if func is functional.scaled_dot_product_attention else func
        return call(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Tensor:
    if attn_mask is not None or dropout_p or named.get("enable_gqa"):
        given = query, key, value, attn_mask, dropout_p, is_causal
        return functional.scaled_dot_product_attention(*given, **named)
    return attention(query, key, value, causal=is_causal, scale=named.get("scale"))


def is_plain_multihead(layer: nn.Module) -> bool:
    """A MultiheadAttention that makes queries, keys and values of one width, and drops nothing."""
    if type(layer) is not nn.MultiheadAttention:
        return False
    alike = layer._qkv_same_embed_dim and layer.bias_k is None and not layer.add_zero_attn
    return alike and layer.batch_first and not layer.dropout


def multihead(
    layer: nn.MultiheadAttention,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    key_padding_mask: Tensor | None = None,
    need_weights: bool = True,
    attn_mask: Tensor | None = None,
    average_attn_weights: bool = True,
    is_causal: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """What it gives in training, where neither masks nor weights are asked for; all else is torch's own, which has a
    faster way in evaluation."""
    given = query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
    masked = key_padding_mask is not None or attn_mask is not None or is_causal
    if masked or need_weights or not layer.training or query.dim() != 3:
        return nn.MultiheadAttention.forward(layer, *given)
    heads = (each.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for each in _projected(layer, query, key, value))
    return layer.out_proj(attention(*heads).transpose(1, 2).flatten(2)), None


def _projected(layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    weight, bias = layer.in_proj_weight, layer.in_proj_bias
    if query is key and key is value:
        return functional.linear(query, weight, bias).chunk(3, dim=-1)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    given = zip((query, key, value), weight.chunk(3), biases, strict=True)
    return tuple(functional.linear(*each) for each in given)
