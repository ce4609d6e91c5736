"""Which layers an operator of hasten's own computes as they do, and how it is called in their place; and by which names
a model calls functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hasten.kernels import add_layer_norm, gelu, rms_norm, softmax


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """kind: of layers, exactly. compute: (layer, what it is given) -> what it gives. why_plain: why it has no compiled
    form here; None where it has one. fits: whether the operator computes what this layer does."""

    kind: type[nn.Module]
    compute: Callable[..., Tensor]
    why_plain: Callable[[], str | None]
    fits: Callable[[Any], bool] = lambda layer: True


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
    "gelu": Exchange(kind=nn.GELU, compute=_gelu, why_plain=gelu.why_plain),
    "layer_norm": Exchange(kind=nn.LayerNorm, compute=_layer_norm, why_plain=add_layer_norm.why_plain, fits=_over_one),
    "rms_norm": Exchange(kind=nn.RMSNorm, compute=_rms_norm, why_plain=rms_norm.why_plain, fits=_over_one),
    "softmax": Exchange(
        kind=nn.Softmax, compute=_softmax, why_plain=softmax.why_plain, fits=lambda layer: layer.dim is not None
    ),
}
