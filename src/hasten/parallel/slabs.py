"""What a rank holds of a tensor in parts, as slabs of the whole: where each begins, and its memory.

However a tensor is held, by fully_shard, in shares of a layer, both in one, or by one stage of a pipeline: on each rank
it is no, one or a few slabs, and those of all ranks fill it. Where several ranks hold the same, the first of them has
it to give. Nothing is sent here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
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
    """shape: of the whole. slabs: with where they begin in it; none of them is empty."""

    shape: Offsets
    dtype: torch.dtype
    slabs: tuple[tuple[Offsets, Tensor], ...]


def held(tensor: DTensor | Share | Owned, grid: Grid) -> Held:
    """What this rank has to give of it, so that all ranks of the grid give each element once."""
    gives = tensor.is_here if isinstance(tensor, Owned) else grid.stages.leads
    return _given(tensor.shape, tensor.dtype, _of_a_stage(tensor, grid) if gives else ())


def _of_a_stage(tensor: Tensor | Share | Owned, grid: Grid) -> Iterable[tuple[Offsets, Tensor]]:
    """Of what the ranks of one stage have, who has it to give."""
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
    """Where the part of a rank begins and how long it is, as torch.chunk cuts: the last may be short, or empty."""
    step = -(-size // ranks)
    start = min(rank * step, size)
    return start, min(step, size - start)


def in_whole(
    local: Tensor, offsets: Offsets, split: Split, rank: int, ranks: int, size: int
) -> Iterator[tuple[Offsets, Tensor]]:
    """The slabs of the whole that a part of a rank's share is.

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
    """This rank's part of a tensor, as it holds one of `like`. read: (offsets, shape) -> a part of the whole."""
    offsets, local, _ = _local(like)
    own = read(offsets, (*local.shape,)).to(like.device, like.dtype)
    return DTensor.from_local(
        own, like.device_mesh, like.placements, run_check=False, shape=like.shape, stride=like.stride()
    )


def _local(tensor: Tensor) -> tuple[Offsets, Tensor, bool]:
    """Where this rank's part begins, the part, and whether no rank before it in the mesh has the same."""
    offsets, first = [0] * tensor.dim(), True
    if not isinstance(tensor, DTensor):
        return (*offsets,), tensor.detach(), True
    sizes, place = list(tensor.shape), tensor.device_mesh.get_coordinate()
    assert place is not None  # of a mesh that this rank belongs to
    for number, placement in enumerate(tensor.placements):
        if type(placement) is Shard:
            start, sizes[placement.dim] = chunk(sizes[placement.dim], place[number], tensor.device_mesh.size(number))
            offsets[placement.dim] += start
        elif type(placement) is Replicate:
            first = first and place[number] == 0
        else:
            raise TypeError(f"a tensor is held as {placement}, of which it is not known which part that is")
    local = cast("DTensor", tensor.detach()).to_local()
    assert list(local.shape) == sizes
    return (*offsets,), local, first


def _given(shape: Sequence[int], dtype: torch.dtype, slabs: Iterable[tuple[Offsets, Tensor]]) -> Held:
    return Held((*shape,), dtype, tuple((offsets, each) for offsets, each in slabs if each.numel()))
