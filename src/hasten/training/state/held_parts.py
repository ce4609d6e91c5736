"""A state whose tensors ranks hold in parts, as each of them saves what it has of it."""

from __future__ import annotations

from typing import Any

from hasten.checkpoint.sharded.slabs import InParts, Slab
from hasten.parallel.grid import Grid
from hasten.parallel.slabs import held
from hasten.parallel.whole import with_each_part


def with_parts_held(state: Any, grid: Grid) -> Any:
    """The state, a tree of mappings and sequences, with a mark in the place of each tensor in parts. It refers to the
    state's own memory, and nothing is sent to another rank."""

    def marked(tensor: Any) -> InParts:
        found = held(tensor, grid)
        return InParts(found.shape, found.dtype, tuple(Slab(*each) for each in found.slabs))

    return with_each_part(state, marked)
