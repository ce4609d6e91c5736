"""Which layers an operator of hasten's own computes as they do, and how it is called in their place; and by which names
a model calls functions."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from hasten.kernels import add_layer_norm, attention, gelu, graphs, rms_norm, softmax
from hasten.techniques._attending import FUNCTION, attending, calls_attention
from hasten.techniques._multihead import is_plain, multihead


@dataclass(frozen=True, kw_only=True, slots=True)
class Exchange:
    """kind: of layers, to say. compute: (layer, what it is given) -> what it gives. fits: whether the operator computes
    what a layer does. why_plain: why there is no form of its own on a device; None where there is one."""

    kind: str
    compute: Callable[..., Any]
    fits: Callable[[nn.Module], bool]
    why_plain: Callable[[torch.device], str | None]


def _of(kind: type[nn.Module], operator: ModuleType, compute: Callable[..., Tensor], fits: Any = None) -> Exchange:
    """Of layers of exactly that kind. operator: the module that has it."""
    return Exchange(
        kind=kind.__name__,
        compute=compute,
        fits=lambda layer: type(layer) is kind and (fits is None or fits(layer)),
        why_plain=partial(_why_plain, operator),
    )


def _why_plain(operator: ModuleType, device: torch.device) -> str | None:
    if device.type == "cpu":
        return operator.why_plain()
    if device.type == "cuda":
        return operator.why_plain_on(device)
    return f"these operators have no form for {device.type}"


def _attention_why_plain(device: torch.device) -> str | None:
    return (
        attention.why_plain() if device.type == "cpu" else f"torch's own attention is the faster one on {device.type}"
    )


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
    return set[str]().union(*map(_named_by, model.modules()))


def _named_by(layer: nn.Module) -> set[str]:
    """Of its own forward method alone."""
    return {*getattr(getattr(type(layer).forward, "__code__", None), "co_names", ())}


EXCHANGES: Mapping[str, Exchange] = {
    "gelu": _of(nn.GELU, gelu, _gelu),
    "layer_norm": _of(nn.LayerNorm, add_layer_norm, _layer_norm, _over_one),
    "rms_norm": _of(nn.RMSNorm, rms_norm, _rms_norm, _over_one),
    "softmax": _of(nn.Softmax, softmax, _softmax, lambda layer: layer.dim is not None),
    "attention": Exchange(
        kind=f"a layer that calls {FUNCTION}",
        compute=attending,
        fits=calls_attention,
        why_plain=_attention_why_plain,
    ),
    "multihead_attention": Exchange(
        kind="MultiheadAttention",
        compute=multihead,
        fits=is_plain,
        why_plain=_attention_why_plain,
    ),
}


def calls_functions(model: nn.Module, device: torch.device) -> bool:
    """Whether layers that are none of those themselves name functions that a traced graph exchanges on that device."""
    attends = _attention_why_plain(device) is None
    others = (each for each in model.modules() if not any(_is_of(each, name) for name in EXCHANGES))
    named = set[str]().union(*(_named_by(each) for each in others))
    return any(name in graphs.FUNCTIONS and (attends or name != FUNCTION) for name in named)


def _is_of(layer: nn.Module, name: str) -> bool:
    """Whether all that it computes is an operator's; one that attends may do more."""
    return name != "attention" and EXCHANGES[name].fits(layer)
