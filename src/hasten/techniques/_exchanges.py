"""Which layers an operator of hasten's own computes as they do, and how it is called in their place; and by which names
a model calls functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hasten.kernels import add_layer_norm, gelu, rms_norm, softmax


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """kind: of layers, exactly. compute: (layer, what it is given) -> what it gives. operator: the module that has it.
    fits: whether the operator computes what this layer does."""

    kind: type[nn.Module]
    compute: Callable[..., Tensor]
    operator: ModuleType
    fits: Callable[[Any], bool] = lambda layer: True

    def why_plain(self, device: torch.device) -> str | None:
        """Why it has no form of its own on this device; None where it has one."""
        if device.type == "cpu":
            return self.operator.why_plain()
        if device.type == "cuda":
            return self.operator.why_plain_on(device)
        return f"these operators have no form for {device.type}"


def _gelu(layer: nn.GELU, input: Tensor) -> Tensor:  # what the layers call it, who may be given it by name
    return gelu.gelu(input, layer.approximate)


def _layer_norm(layer: nn.LayerNorm, input: Tensor) -> Tensor:
    return add_layer_norm.layer_norm(input, layer.weight, layer.bias, layer.eps)


def _rms_norm(layer: nn.RMSNorm, x: Tensor) -> Tensor:
    return rms_norm.rms_norm(x, layer.weight, layer.eps)


def _softmax(layer: nn.Softmax, input: Tensor) -> Tensor:
    return softmax.softmax(input, layer.dim)  # pyright: ignore[reportArgumentType] what fits has one


def _over_one(layer: nn.LayerNorm | nn.RMSNorm) -> bool:
    return len(layer.normalized_shape) == 1


def functions_named(model: nn.Module) -> set[str]:
    """What the code of the forward methods in it calls by name, and whatever else it names."""
    methods = {getattr(type(module).forward, "__code__", None) for module in model.modules()}
    return {name for code in methods if code is not None for name in code.co_names}


EXCHANGES: Mapping[str, Exchange] = {
    "gelu": Exchange(kind=nn.GELU, compute=_gelu, operator=gelu),
    "layer_norm": Exchange(kind=nn.LayerNorm, compute=_layer_norm, operator=add_layer_norm, fits=_over_one),
    "rms_norm": Exchange(kind=nn.RMSNorm, compute=_rms_norm, operator=rms_norm, fits=_over_one),
    "softmax": Exchange(kind=nn.Softmax, compute=_softmax, operator=softmax, fits=lambda layer: layer.dim is not None),
}
