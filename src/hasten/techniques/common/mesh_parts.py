"""The parts of a model that several devices can share: repeated blocks, divisible layers, layers gathered one by
one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import nn

from hasten.parallel.repeated_blocks import repeated_blocks, unshared_blocks
from hasten.parallel.tensor.layer_divisions import Columns, Division, Rows, parameter_splits, qualified, size_to_divide
from hasten.parallel.tensor.layer_patterns import divisible


@dataclass(frozen=True, kw_only=True, slots=True)
class ModelParts:
    """blocks: names, in the model's order. divided: names of parameters of which a tensor rank holds a part. opens,
    closes: names of layers before and after which every tensor rank has the same tensors; between them each has a part.
    sizes: numbers that the number of tensor ranks must divide. units: names of the layers that `shard` gathers one by
    one."""

    blocks: tuple[str, ...]
    divided: frozenset[str]
    opens: frozenset[str]
    closes: frozenset[str]
    sizes: tuple[tuple[str, int], ...]
    units: tuple[str, ...]


def parts_of(model: nn.Module) -> ModelParts:
    ways = divisible(model)
    whole = [name for name in ways if isinstance(model.get_submodule(name), nn.MultiheadAttention)]
    return ModelParts(
        blocks=tuple(repeated_blocks(model)),
        divided=frozenset(divided_parameters(model, ways)),
        opens=frozenset([*whole, *(name for name, way in ways.items() if isinstance(way, Columns))]),
        closes=frozenset([*whole, *(name for name, way in ways.items() if isinstance(way, Rows))]),
        sizes=tuple(size_to_divide(name, model.get_submodule(name), way) for name, way in ways.items()),
        units=tuple(unshared_blocks(model)),
    )


def is_in(name: str, module: str) -> bool:
    """Whether a module or parameter of this name is in the module, or is the module."""
    return not module or name == module or name.startswith(f"{module}.")


def divided_parameters(model: nn.Module, ways: Mapping[str, Division]) -> Iterator[str]:
    """Names of the parameters that tensor parallelism divides."""
    for name, way in ways.items():
        yield from (qualified(name, own) for own in parameter_splits(model.get_submodule(name), way))
