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


@dataclass(frozen=True, slots=True)
class Words:
    """An embedding by its rows."""


@dataclass(frozen=True, slots=True)
class Scores:
    """A linear layer by its outputs, which are the scores of a vocabulary: the cross-entropy is computed on shares."""


Division = Columns | Rows | Heads | Words | Scores


_SIZES = {Columns: "out_features", Scores: "out_features", Rows: "in_features", Words: "num_embeddings"}


def parameter_splits(module: nn.Module, division: Division) -> dict[str, Split]:
    """How each of a layer's parameters is divided, by its name in the layer."""
    found: dict[str, Split] = {}
    if isinstance(division, Columns | Scores):
        split = Split(0, division.parts if isinstance(division, Columns) else 1)
        found = {"weight": split, "bias": split}
    elif isinstance(division, Rows | Words):
        found = {"weight": Split(1 if isinstance(division, Rows) else 0)}
    elif isinstance(module, nn.MultiheadAttention):
        found = {"in_proj_weight": Split(0, 3), "in_proj_bias": Split(0, 3), "out_proj.weight": Split(1)}
    present = dict(module.named_parameters(remove_duplicate=False))
    return {name: split for name, split in found.items() if name in present}


def size_to_divide(name: str, module: Any, division: Division) -> tuple[str, int]:
    """The name and the value of the size that the number of ranks must divide. name: of the module."""
    attribute = division.attribute if isinstance(division, Heads) else _SIZES[type(division)]
    size = getattr(module, attribute)
    return qualified(name, attribute), size // division.parts if isinstance(division, Columns) else size


def qualified(module: str, name: str) -> str:
    """The name in the model of what is called `name` in this module."""
    return f"{module}.{name}" if module else name
