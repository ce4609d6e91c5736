"""How torch's MultiheadAttention computes by hasten's own attention."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional

from hasten.kernels.attention import attention


def is_plain(layer: nn.Module) -> bool:
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
    faster way in evaluation, and whose errors are torch's."""
    given = query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
    masked = key_padding_mask is not None or attn_mask is not None or is_causal
    if masked or need_weights or not layer.training or not is_plain(layer) or not _batches(query, key, value):
        return nn.MultiheadAttention.forward(layer, *given)
    heads = (each.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for each in _projected(layer, query, key, value))
    attended = attention(*heads).transpose(1, 2).flatten(2)
    return functional.linear(attended, layer.out_proj.weight, layer.out_proj.bias), None


def _batches(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether they are three of as many samples, with a value for each key."""
    if any(each.is_nested or each.dim() != 3 for each in (query, key, value)):
        return False
    return query.shape[0] == key.shape[0] and key.shape == value.shape


def _projected(layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    weight, bias = layer.in_proj_weight, layer.in_proj_bias
    if query is key and key is value:
        return functional.linear(query, weight, bias).chunk(3, dim=-1)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    given = zip((query, key, value), weight.chunk(3), biases, strict=True)
    return tuple(functional.linear(*each) for each in given)
