"""In which ways several ranks hold one layer together, and what each of them has of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import nn

from hasten.parallel.tensor.tensor_sharding import Split


@dataclass(frozen=True, slots=True)
class Columns:
    """A linear layer by its outputs. parts: that are divided each by itself, as queries, keys and values."""

    parts: int = 1


@dataclass(frozen=True, slots=True)
class Rows:
    """A linear layer by its inputs, of which each rank has a share."""


@dataclass(frozen=True, slots=True)
class Heads:
    """A whole number of heads that a module keeps, of which each rank computes a share; a MultiheadAttention whole."""

    attribute: str = "num_heads"


@dataclass(frozen=True, slots=True)
class Words:
    """An embedding by the words that it knows."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A linear layer by its outputs, which are the scores of words and go to a cross-entropy in shares."""


Way = Columns | Rows | Heads | Words | Scores


def splits_of(module: nn.Module, way: Way) -> dict[str, Split]:
    """How each of a layer's parameters is divided, by its name below the layer; those that it has."""
    found: dict[str, Split] = {}
    if isinstance(way, Columns | Scores):
        split = Split(0, way.parts if isinstance(way, Columns) else 1)
        found = {"weight": split, "bias": split}
    elif isinstance(way, Rows):
        found = {"weight": Split(1)}
    elif isinstance(way, Words):
        found = {"weight": Split(0)}
    elif isinstance(module, nn.MultiheadAttention):
        found = {"in_proj_weight": Split(0, 3), "in_proj_bias": Split(0, 3), "out_proj.weight": Split(1)}
    present = dict(module.named_parameters(remove_duplicate=False))
    return {name: split for name, split in found.items() if name in present}


def size_to_divide(name: str, module: Any, way: Way) -> tuple[str, int]:
    """What a number of ranks must divide, and its name. name: of the module."""
    attribute, size = "", 0
    if isinstance(way, Columns):
        attribute, size = "out_features", module.out_features // way.parts
    elif isinstance(way, Scores):
        attribute, size = "out_features", module.out_features
    elif isinstance(way, Rows):
        attribute, size = "in_features", module.in_features
    elif isinstance(way, Words):
        attribute, size = "num_embeddings", module.num_embeddings
    else:
        attribute, size = way.attribute, getattr(module, way.attribute)
    return below(name, attribute), size


def below(module: str, name: str) -> str:
    """The name, from the model, of what a module of this name has under that one."""
    return f"{module}.{name}" if module else name
