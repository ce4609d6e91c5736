"""How layers that attend compute by hasten's own attention: those whose forward method names torch's function, and
torch's MultiheadAttention.

The code of such a forward method is called as it is, but for what it finds under the global names by which it comes to
scaled_dot_product_attention. Whatever else the layer calls, and whatever it sees of its module, stays.
"""

from __future__ import annotations

import dis
from collections.abc import Callable
from functools import cache
from types import FunctionType, ModuleType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from hasten.kernels.attention import attention

FUNCTION = "scaled_dot_product_attention"
_TORCHS = functional.scaled_dot_product_attention
_ON_THE_WAY = {torch: "nn", nn: "functional", functional: FUNCTION}  # to the function, by modules


def names_attention(layer: nn.Module) -> bool:
    """Whether its own forward method comes to torch's function by global names."""
    return _by_own_attention(type(layer).forward) is not None


def attending(layer: nn.Module, *given: Any, **named: Any) -> Any:
    """What the layer's forward method gives, by hasten's attention; in the hands of torch.compile by torch's, for its
    graphs would end at a function that is made here."""
    forward = type(layer).forward
    by_own = None if torch.compiler.is_compiling() else _by_own_attention(forward)
    return (by_own or forward)(layer, *given, **named)


@cache
def _by_own_attention(forward: Callable[..., Any]) -> Callable[..., Any] | None:
    """The same code, with hasten's attention in the place of torch's; None where it does not name that, or where it
    writes to globals, which it would not find again."""
    code = getattr(forward, "__code__", None)
    if not isinstance(forward, FunctionType) or code is None or FUNCTION not in _names(code):
        return None
    found = {name: _standing_in(forward.__globals__.get(name)) for name in _names(code)}
    instead = {name: value for name, value in found.items() if value is not None}
    if not instead or any(each.opname in ("STORE_GLOBAL", "DELETE_GLOBAL") for each in dis.get_instructions(code)):
        return None
    made = FunctionType(
        code, _Globals(forward.__globals__, instead), forward.__name__, forward.__defaults__, forward.__closure__
    )
    made.__kwdefaults__ = forward.__kwdefaults__
    return made


def _names(code: Any) -> set[str]:
    """Also of the functions that stand inside."""
    inner = (_names(each) for each in code.co_consts if hasattr(each, "co_names"))
    return {*code.co_names}.union(*inner)


class _Globals(dict[str, Any]):
    """Those of a module, as they are when they are asked for, but for some names."""

    def __init__(self, real: dict[str, Any], instead: dict[str, Any]) -> None:
        super().__init__(instead)
        self._real = real

    def __missing__(self, name: str) -> Any:
        return self._real[name]


class _Module:
    """What a module has, but for the one name that leads to attention."""

    def __init__(self, module: ModuleType, name: str, instead: Any) -> None:
        self._module = module
        setattr(self, name, instead)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


def _standing_in(value: Any) -> Any:
    """For a module on the way to torch's function, or for that; None for anything else."""
    if value is _TORCHS:
        return _attention
    if not isinstance(value, ModuleType) or value not in _ON_THE_WAY:
        return None
    name = _ON_THE_WAY[value]
    return _Module(value, name, _standing_in(getattr(value, name)))


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
        return _TORCHS(query, key, value, attn_mask, dropout_p, is_causal, **named)
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
    if masked or need_weights or layer.dropout or not layer.training or query.is_nested or query.dim() != 3:
        return nn.MultiheadAttention.forward(layer, *given)
    heads = (each.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for each in _projected(layer, query, key, value))
    attended = attention(*heads).transpose(1, 2).flatten(2)
    return functional.linear(attended, layer.out_proj.weight, layer.out_proj.bias), None


def _projected(layer: nn.MultiheadAttention, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, ...]:
    weight, bias = layer.in_proj_weight, layer.in_proj_bias
    if query is key and key is value:
        return functional.linear(query, weight, bias).chunk(3, dim=-1)
    biases = (None,) * 3 if bias is None else bias.chunk(3)
    given = zip((query, key, value), weight.chunk(3), biases, strict=True)
    return tuple(functional.linear(*each) for each in given)
