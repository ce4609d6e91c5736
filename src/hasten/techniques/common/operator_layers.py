"""Which layers a fused operator can replace, how the operator is called in their place, and which functions a model
calls."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hasten.kernels.activation import gelu
from hasten.kernels.attention import scaled_dot_product_attention
from hasten.kernels.normalization import add_layer_norm
from hasten.kernels.softmax import cross_entropy, softmax
from hasten.techniques.common.attention_layers import calls_attention, names_in_forward, with_fused_attention

WhyPlain = Callable[[torch.device], str | None]


@dataclass(frozen=True, kw_only=True, slots=True)
class FusedLayer:
    """One kind of layer that an operator can compute.

    kind: the layers, in words. forward: (layer, its inputs) -> its output. fits: whether the operator computes what a
    layer does. why_plain: why the operator has no form on a device; None where it has one.
    """

    kind: str
    forward: Callable[..., Any]
    fits: Callable[[nn.Module], bool]
    why_plain: WhyPlain


# The parameters are called `input`, as in torch's layers, since a caller may pass them by name.
def _gelu(layer: nn.GELU, input: Tensor) -> Tensor:
    return gelu.gelu(input, layer.approximate)


def _layer_norm(layer: nn.LayerNorm, input: Tensor) -> Tensor:
    return add_layer_norm.layer_norm(input, layer.weight, layer.bias, layer.eps)


def _softmax(layer: nn.Softmax, input: Tensor) -> Tensor:
    return softmax.softmax(input, layer.dim)  # pyright: ignore[reportArgumentType]  fits: dim is not None


FUSED_LAYERS: Mapping[str, FusedLayer] = {
    "gelu": FusedLayer(kind="GELU", forward=_gelu, fits=lambda layer: type(layer) is nn.GELU, why_plain=gelu.why_plain),
    "layer_norm": FusedLayer(
        kind="LayerNorm",
        forward=_layer_norm,
        fits=lambda layer: type(layer) is nn.LayerNorm and len(layer.normalized_shape) == 1,
        why_plain=add_layer_norm.why_plain,
    ),
    "softmax": FusedLayer(
        kind="Softmax",
        forward=_softmax,
        fits=lambda layer: type(layer) is nn.Softmax and layer.dim is not None,
        why_plain=softmax.why_plain,
    ),
    "attention": FusedLayer(
        kind="a layer that calls scaled_dot_product_attention",
        forward=with_fused_attention,
        fits=calls_attention,
        why_plain=scaled_dot_product_attention.why_plain,
    ),
}
FUNCTIONS: Mapping[str, WhyPlain] = {
    "gelu": gelu.why_plain,
    "softmax": softmax.why_plain,
    "layer_norm": add_layer_norm.why_plain,
    "cross_entropy": cross_entropy.why_plain,
    "scaled_dot_product_attention": scaled_dot_product_attention.why_plain,
}


def functions_called(model: nn.Module) -> set[str]:
    """Names in the forward methods of the model's layers, without those of layers that an operator replaces.

    A layer that calls attention counts, as it may call other functions too.
    """
    whole = [each for name, each in FUSED_LAYERS.items() if name != "attention"]
    others = (type(layer) for layer in model.modules() if not any(each.fits(layer) for each in whole))
    return set[str]().union(*map(names_in_forward, others))


def reasons_without_form(names: Iterable[str], device: torch.device) -> dict[str, str]:
    """Those of the layers or functions whose operator has no form on the device, and why."""
    found = {name: FUSED_LAYERS[name].why_plain if name in FUSED_LAYERS else FUNCTIONS[name] for name in names}
    reasons = {name: why_plain(device) for name, why_plain in found.items()}
    return {name: reason for name, reason in reasons.items() if reason is not None}
