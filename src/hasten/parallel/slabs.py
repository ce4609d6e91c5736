"""What a rank saves of a tensor in parts: slabs of the whole, each with its offsets and its memory.

However a tensor is held, by fully_shard, in shares of a layer, both, or by one pipeline stage: each rank has some
slabs, and those of all ranks fill the whole. Where several ranks hold the same slab, the first of them saves it.
Nothing is communicated here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor, Replicate, Shard

from hasten.parallel.grid import Grid
from hasten.parallel.sharding import Owned, Share, Split

Offsets = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Held:
    """shape: of the whole tensor. slabs: with their offsets in it; none of them is empty."""

    shape: Offsets
    dtype: torch.dtype
    slabs: tuple[tuple[Offsets, Tensor], ...]


def held(tensor: DTensor | Share | Owned, grid: Grid) -> Held:
    """What this rank saves of it, so that the ranks of the grid save each element once."""
    saves = tensor.is_here if isinstance(tensor, Owned) else grid.stages.leads
    slabs = _of_a_stage(tensor, grid) if saves else ()
    return Held((*tensor.shape,), tensor.dtype, tuple((offsets, each) for offsets, each in slabs if each.numel()))


def _of_a_stage(tensor: Tensor | Share | Owned, grid: Grid) -> Iterable[tuple[Offsets, Tensor]]:
    """What this rank saves of a tensor of its stage."""
    own = tensor.tensor if isinstance(tensor, Owned) else tensor
    if isinstance(own, Share):
        held, split, ranks = own
        offsets, local, first = _local(held)
        slabs = in_whole(local, offsets, split, ranks.rank, ranks.size, held.shape[split.dim])
    else:
        held = own
        offsets, local, first = _local(held)
        slabs, first = [(offsets, local)], first and grid.shares.leads
    return slabs if first and (isinstance(held, DTensor) or grid.data.leads) else ()


def chunk(size: int, rank: int, ranks: int) -> tuple[int, int]:
    """Offset and length of a rank's part, divided as by torch.chunk: the last may be short, or empty."""
    step = -(-size // ranks)
    start = min(rank * step, size)
    return start, min(step, size - start)


def in_whole(
    local: Tensor, offsets: Offsets, split: Split, rank: int, ranks: int, size: int
) -> Iterator[tuple[Offsets, Tensor]]:
    """The slabs of the whole tensor that a part of a rank's share consists of.

    local: begins at these offsets in the share. size: of the share, along the dimension that is divided.
    """
    dim, part = split.dim, size // split.parts
    begin, end = offsets[dim], offsets[dim] + local.shape[dim]
    for number in range(split.parts):
        start, stop = max(begin, number * part), min(end, (number + 1) * part)
        if start < stop:
            there = (number * ranks + rank) * part + start - number * part
            yield (*offsets[:dim], there, *offsets[dim + 1 :]), local.narrow(dim, start - begin, stop - start)


def part_read(read: Callable[[Offsets, Offsets], Tensor], like: DTensor) -> DTensor:
    """This rank's part of a tensor, divided as `like` is. read: (offsets, shape) -> a part of the whole."""
    offsets, local, _ = _local(like)
    own = read(offsets, (*local.shape,)).to(like.device, like.dtype)
    return DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _local(tensor: Tensor) -> tuple[Offsets, Tensor, bool]:
    """The part's offsets, the part, and whether this rank is the first in the mesh that holds it."""
    offsets, first = [0] * tensor.dim(), True
    if not isinstance(tensor, DTensor):
        return (*offsets,), tensor.detach(), True
    sizes, place = list(tensor.shape), tensor.device_mesh.get_coordinate()
    assert place is not None  # of a mesh that this rank belongs to
    for number, placement in enumerate(tensor.placements):
        if type(placement) is Shard:
            start, sizes[placement.dim] = chunk(sizes[placement.dim], place[number], tensor.device_mesh.size(number))
            offsets[placement.dim] += start
        else:
            assert type(placement) is Replicate  # fully_shard uses no other
            first = first and place[number] == 0
    return (*offsets,), cast("DTensor", tensor.detach()).to_local(), first
