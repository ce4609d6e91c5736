"""The calls by which a script drops out, whether a module makes them or its own code does."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from inspect import signature
from typing import Any

from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_pre_hook

from hasten.scripts.patching import replaced

FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")
ATTENTION = "scaled_dot_product_attention"


def dropout_watched(resources: ExitStack, drops: Callable[[float, int], None]) -> None:
    """From now on. drops: called for each call that drops out, with its probability and how many numbers it gets."""

    def function(original: Callable[..., Tensor], *args: Any, **named: Any) -> Tensor:
        given = signature(original).bind(*args, **named)
        given.apply_defaults()
        if given.arguments["training"] and given.arguments["p"]:
            drops(given.arguments["p"], given.arguments["input"].numel())
        return original(*args, **named)

    def attention(
        original: Callable[..., Tensor], query: Tensor, key: Tensor, value: Tensor, *args: Any, **named: Any
    ) -> Tensor:
        p = args[1] if len(args) > 1 else named.get("dropout_p", 0.0)
        if p:
            drops(p, query.numel() // query.shape[-1] * key.shape[-2])
        return original(query, key, value, *args, **named)

    def recurrent(module: nn.Module, args: Any) -> None:
        if isinstance(module, nn.RNNBase) and module.training and module.dropout:
            drops(module.dropout, args[0].data.numel() if args else 0)  # of an input that is given by its name

    _replace(resources, function, attention)
    resources.callback(register_module_forward_pre_hook(recurrent).remove)


def remove_from_layers(module: nn.Module) -> None:
    """Of recurrent layers, which drop out by an attribute."""
    for each in module.modules():
        if isinstance(each, nn.RNNBase):
            each.dropout = 0.0


def dropout_removed(resources: ExitStack) -> None:
    """From now on, of all functions that are called: before the script imports them by name."""

    def function(original: Callable[..., Tensor], input: Tensor, *args: Any, **named: Any) -> Tensor:
        return input

    def attention(
        original: Callable[..., Tensor],
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attn_mask: Tensor | None = None,
        dropout_p: float = 0.0,
        *args: Any,
        **named: Any,
    ) -> Tensor:
        return original(query, key, value, attn_mask, 0.0, *args, **named)

    _replace(resources, function, attention)


def _replace(resources: ExitStack, function: Callable[..., Tensor], attention: Callable[..., Tensor]) -> None:
    for name in FUNCTIONS:
        resources.enter_context(replaced(nn.functional, name, function))
    resources.enter_context(replaced(nn.functional, ATTENTION, attention))
