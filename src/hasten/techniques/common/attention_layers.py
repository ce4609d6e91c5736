"""A user's attention layers that compute with hasten's attention operator.

A user's layer is recognized by its forward method, whose source calls scaled_dot_product_attention. While that method
runs, a torch.overrides.TorchFunctionMode is entered that computes this one function by the operator in bfloat16. All
other functions pass through. Measured on one core of a busy AMD EPYC, the mode costs about 55 µs for a forward that
calls nine functions. The operator saves more than that from about 3,000 numbers in each of query, key and value on (80
ms for 4,194,304 of them, records/kernels-attention-bfloat16-22/2-cores-amd-epyc).
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from functools import cache
from textwrap import dedent
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from hasten.kernels.attention.scaled_dot_product_attention import attention
from hasten.techniques.common.torch_internals import function_modes

FUNCTION = functional.scaled_dot_product_attention


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
    plain = all(type(each) in (Tensor, nn.Parameter) for each in (query, key, value))  # no proxy of a tracer
    if not plain or attn_mask is not None or dropout_p or enable_gqa:
        return FUNCTION(query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa)
    return attention(query, key, value, causal=is_causal, scale=scale)


def calls_attention(layer: nn.Module) -> bool:
    """Whether the layer's own forward is a method that calls torch's scaled_dot_product_attention by that name."""
    is_method = inspect.isfunction(inspect.getattr_static(type(layer), "forward"))
    return is_method and FUNCTION.__name__ in names_in_forward(type(layer))


def with_fused_attention(layer: nn.Module, /, *given: Any, **named: Any) -> Any:
    """The layer's forward, with hasten's attention. Under torch.compile torch's own is traced."""
    with nullcontext() if torch.compiler.is_compiling() else FusedAttention():
        return type(layer).forward(layer, *given, **named)


def same_attention_later() -> AbstractContextManager[object]:
    """For a block that is recomputed after the layer around it has returned: the mode that is entered now, if any."""
    return next((mode for mode in function_modes() if isinstance(mode, FusedAttention)), nullcontext())


@cache
def names_in_forward(kind: type[nn.Module]) -> frozenset[str]:
    """Names and attributes in the source of a class's forward method; none where there is no source to read."""
    try:
        tree = ast.parse(dedent(inspect.getsource(kind.forward)))
    except (OSError, TypeError, SyntaxError):
        return frozenset()
    attributes = {node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    return frozenset(attributes | {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)})
