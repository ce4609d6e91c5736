"""Gather tensors that ranks hold in parts, and divide whole ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.multiprocessing.reductions import StorageWeakRef

from hasten.facts.ranks import Ranks
from hasten.parallel.collectives import local_of
from hasten.parallel.sharding import Owned, Share


def whole(state: Any, ranks: Ranks, *, on_all: bool = False) -> Any:
    """The state, a tree of mappings and sequences, with every tensor gathered on the host of the first rank, one after
    the other; None in their place on other ranks, unless on_all. All ranks call it. Tied tensors stay tied."""
    met = dict[tuple[Any, ...], Tensor | None]()

    def gathered(tensor: DTensor | Share | Owned) -> Tensor | None:
        if isinstance(tensor, Share | Owned):
            found = _together(tensor)
            return found.cpu() if ranks.leads or on_all else None
        local = tensor.to_local()
        # By the storage, because a rank may have an empty part, and all ranks must gather equally often.
        key = StorageWeakRef(local.untyped_storage()), local.storage_offset(), tensor.shape, tensor.dtype
        if key not in met:
            found = cast("DTensor", tensor.detach()).full_tensor()
            met[key] = found.cpu() if ranks.leads or on_all else None
        return met[key]

    return with_each_part(state, gathered)


def _together(tensor: Tensor | Share | Owned) -> Tensor:
    """The whole tensor on the device: gathered by its owner, and sent to the others."""
    if isinstance(tensor, Owned):
        inner = tensor.tensor.tensor if isinstance(tensor.tensor, Share) else tensor.tensor
        return tensor.gathered(_together(tensor.tensor) if tensor.is_here else local_of(inner.detach()))
    if isinstance(tensor, Share):
        return tensor.gathered(_together(tensor.tensor))
    own = tensor.detach()
    return own.full_tensor() if isinstance(own, DTensor) else own


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """This rank's part of a whole tensor, divided as `like` is; the tensor itself where `like` is whole."""
    if not isinstance(like, DTensor):
        return whole
    found = whole.detach().to(like.device, like.dtype)
    return distribute_tensor(found, like.device_mesh, like.placements, src_data_rank=None)


def with_each_part(state: Any, change: Callable[[DTensor | Share | Owned], Any]) -> Any:
    """The state, a tree of mappings and sequences, with each tensor in parts replaced by what `change` returns."""
    if isinstance(state, DTensor | Share | Owned):
        return change(state)
    if isinstance(state, Mapping):
        return {key: with_each_part(each, change) for key, each in cast("Mapping[Any, Any]", state).items()}
    if isinstance(state, list | tuple) and not hasattr(cast("object", state), "_fields"):
        return type(state)(with_each_part(each, change) for each in cast("list[Any]", state))
    return state
