"""Which layers of a model several ranks can hold together, and in which way: a table of kinds of modules.

A kind is known by its class, or by what it has: a module of the user's own, such as an attention with one matrix for
queries, keys and values. Whoever names layers in a plan needs none of it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from torch import nn

from hasten.parallel.ways import Columns, Heads, Rows, Way, below

_BETWEEN = (  # of two linear layers: what works on each element by itself
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Mish, nn.ELU, nn.LeakyReLU, nn.Tanh, nn.Sigmoid, nn.Hardswish, nn.Softplus),
    *(nn.Dropout, nn.Identity),
)


@dataclass(frozen=True, kw_only=True, slots=True)
class Kind:
    """ways: path below the module -> how what is there is divided; "" is the module itself."""

    knows: Callable[[nn.Module], bool]
    ways: Mapping[str, Way]


def _is_attention_by_one_matrix(module: Any) -> bool:
    first: Any = getattr(module, "query_key_value", None)
    last: Any = getattr(module, "mix", None)
    if not (is_linear(first) and is_linear(last)):
        return False
    return is_number(getattr(module, "heads", None)) and first.out_features == 3 * last.in_features


def is_linear(module: Any) -> bool:
    """Whether it is a linear layer of torch's own, and neither of a class that adds to it, nor one whose weight is
    computed from others."""
    return type(module) is nn.Linear and "forward" not in vars(module) and {"weight", "bias"} <= {*module._parameters}


def is_number(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def is_packed(module: Any) -> bool:
    """Whether one matrix of an attention makes queries, keys and values, and nothing is added to them."""
    return (
        type(module) is nn.MultiheadAttention
        and module._parameters.get("in_proj_weight") is not None
        and module.bias_k is None
        and not module.add_zero_attn
        and "weight" in module.out_proj._parameters
    )


def _is_encoder_layer(module: Any) -> bool:
    kind = nn.TransformerEncoderLayer
    if not isinstance(module, kind) or type(module).forward is not kind.forward or not is_packed(module.self_attn):
        return False
    return is_linear(module.linear1) and is_linear(module.linear2)


TABLE = (
    Kind(
        knows=_is_encoder_layer,
        ways={"self_attn": Heads(), "linear1": Columns(), "linear2": Rows()},
    ),
    Kind(
        knows=_is_attention_by_one_matrix,
        ways={"query_key_value": Columns(parts=3), "mix": Rows(), "": Heads("heads")},
    ),
)


def divisible(model: nn.Module) -> dict[str, Way]:
    """The layers that the table knows, and pairs of linear layers in a Sequential, by name."""
    found = dict[str, Way]()
    for name, module in model.named_modules():
        for path, way in _ways_of(module):
            found.setdefault(below(name, path) if path else name, way)
    return found


def _ways_of(module: nn.Module) -> Iterator[tuple[str, Way]]:
    for kind in TABLE:
        if kind.knows(module):
            yield from kind.ways.items()
    if isinstance(module, nn.Sequential) and type(module).forward is nn.Sequential.forward:
        yield from _pairs(module)


def _pairs(module: nn.Sequential) -> Iterator[tuple[str, Way]]:
    """Two linear layers, the first of which widens, with nothing between them but what works on each element."""
    layers = [(name, each) for name, each in module._modules.items() if type(each) not in _BETWEEN]
    taken = set[str]()
    for (first, wide), (second, narrow) in pairwise(layers):
        if not (is_linear(wide) and is_linear(narrow) and isinstance(wide, nn.Linear)):
            continue
        if wide.out_features > wide.in_features and first not in taken:
            taken.add(second)
            yield first, Columns()
            yield second, Rows()
