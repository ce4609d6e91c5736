"""Attention layers that compute with hasten's attention: the user's own, and torch's MultiheadAttention.

A user's layer is recognized by its forward method, whose source calls scaled_dot_product_attention. While that method
runs, a torch.overrides.TorchFunctionMode is entered that computes this one function by the operator in bfloat16. All
other functions pass through. Measured on one core of a busy AMD EPYC, the mode costs about 55 µs for a forward that
calls nine functions. The operator saves more than that from about 3,000 numbers in each of query, key and value on (80
ms for 4,194,304 of them, records/2026-11-26_kernels-attention-bfloat16-22_2-cores-amd-epyc).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from textwrap import dedent
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hasten.kernels.attention.scaled_dot_product_attention import attention

FUNCTION = functional.scaled_dot_product_attention
_NAMES = WeakKeyDictionary[type[nn.Module], frozenset[str]]()  # weak, so that a class can be freed


class FusedAttention(TorchFunctionMode):
    """While it is entered, scaled_dot_product_attention is hasten's where that computes the same."""

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        return (_attention if func is FUNCTION else func)(*args, **(kwargs or {}))


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    plain = all(type(each) in (Tensor, nn.Parameter) for each in (query, key, value)) and isinstance(is_causal, bool)
    if not plain or attn_mask is not None or dropout_p or enable_gqa:
        return FUNCTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return attention(query, key, value, causal=is_causal, scale=scale)


def calls_attention(layer: nn.Module) -> bool:
    """Whether the layer's own forward is a method that calls torch's scaled_dot_product_attention by that name."""
    is_method = inspect.isfunction(inspect.getattr_static(type(layer), "forward"))
    return is_method and FUNCTION.__name__ in names_in_forward(type(layer))


def with_fused_attention(layer: nn.Module, /, *given: Any, **named: Any) -> Any:
    """The layer's forward, with hasten's attention. Under torch.compile torch's own is traced."""
    forward = type(layer).forward
    if torch.compiler.is_compiling():
        return forward(layer, *given, **named)
    with FusedAttention():
        return forward(layer, *given, **named)


def names_in_forward(kind: type[nn.Module]) -> frozenset[str]:
    """Names and attributes in the source of a class's forward method; none where there is no source to read."""
    if kind not in _NAMES:
        _NAMES[kind] = _read_names(kind)
    return _NAMES[kind]


def _read_names(kind: type[nn.Module]) -> frozenset[str]:
    try:
        tree = ast.parse(dedent(inspect.getsource(kind.forward)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return frozenset(attributes | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})


def is_plain_multihead(layer: nn.Module) -> bool:
    """Whether it is torch's MultiheadAttention with one matrix for queries, keys and values, and without dropout."""
    if type(layer) is not nn.MultiheadAttention or layer.in_proj_weight is None:
        return False
    return layer.bias_k is None and not layer.add_zero_attn and layer.batch_first and not layer.dropout


def multihead_attention(
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
    """The layer's forward in training without masks and weights, by hasten's attention.

    torch computes everything else: it has a faster path for evaluation, and raises its own errors.
    """
    given = query, key, value, key_padding_mask, need_weights, attn_mask, average_attn_weights, is_causal
    masked = key_padding_mask is not None or attn_mask is not None or is_causal
    if masked or need_weights or not layer.training or not is_plain_multihead(layer) or not _fits(query, key, value):
        return nn.MultiheadAttention.forward(layer, *given)
    heads = (each.unflatten(-1, (layer.num_heads, -1)).transpose(1, 2) for each in _projected(layer, query, key, value))
    attended = attention(*heads).transpose(1, 2).flatten(2)
    return functional.linear(attended, layer.out_proj.weight, layer.out_proj.bias), None


def _fits(query: Tensor, key: Tensor, value: Tensor) -> bool:
    """Whether they are three batches of equally many samples, with one value for each key."""
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
