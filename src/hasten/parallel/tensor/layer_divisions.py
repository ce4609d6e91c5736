"""How several ranks divide one layer, and what each of them holds of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from hasten.parallel.sharding import Split


@dataclass(frozen=True, slots=True)
class Columns:
    """A linear layer by its outputs. parts: equal groups of outputs, each divided by itself, as queries, keys and
    values."""

    parts: int = 1


@dataclass(frozen=True, slots=True)
class Rows:
    """A linear layer by its inputs, of which each rank has a share."""


@dataclass(frozen=True, slots=True)
class Heads:
    """The attribute with a module's number of heads, of which each rank computes a share; or a whole
    MultiheadAttention."""

    attribute: str = "num_heads"


Division = Columns | Rows | Heads


def parameter_splits(module: nn.Module, division: Division) -> dict[str, Split]:
    """How each of a layer's parameters is divided, by its name in the layer."""
    found: dict[str, Split] = {}
    if isinstance(division, Columns):
        found = {"weight": Split(0, division.parts), "bias": Split(0, division.parts)}
    elif isinstance(division, Rows):
        found = {"weight": Split(1)}
    elif isinstance(module, nn.MultiheadAttention):
        found = {"in_proj_weight": Split(0, 3), "in_proj_bias": Split(0, 3), "out_proj.weight": Split(1)}
    present = dict(module.named_parameters(remove_duplicate=False))
    return {name: split for name, split in found.items() if name in present}


def size_to_divide(name: str, module: Any, division: Division) -> tuple[str, int]:
    """The name and the value of the size that the number of ranks must divide. name: of the module."""
    if isinstance(division, Columns):
        return qualified(name, "out_features"), module.out_features // division.parts
    attribute = division.attribute if isinstance(division, Heads) else "in_features"
    return qualified(name, attribute), getattr(module, attribute)


def qualified(module: str, name: str) -> str:
    """The name in the model of what is called `name` in this module."""
    return f"{module}.{name}" if module else name
