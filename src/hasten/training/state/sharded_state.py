"""States whose tensors ranks hold in parts: marked for saving, gathered, and loaded into what each rank holds."""

from __future__ import annotations

from typing import Any, cast

from torch import Tensor

from hasten.checkpoint.sharded.rank_files import Pieced, assembled
from hasten.checkpoint.sharded.tensor_slabs import InParts, Slab
from hasten.facts.ranks import Ranks
from hasten.parallel.sharding import Sharding


def to_save(state: Any, sharding: Sharding) -> Any:
    """The state, a tree of mappings and sequences, with an InParts in place of each tensor that this rank holds in
    part. It refers to the state's memory, and nothing is sent."""
    if sharding.is_whole:
        return state
    from hasten.parallel.slabs import held  # loads DTensor, which takes a second
    from hasten.parallel.whole import with_each_part

    def marked(tensor: Any) -> InParts:
        found = held(tensor, sharding.grid)
        return InParts(found.shape, found.dtype, tuple(Slab(*each) for each in found.slabs))

    return with_each_part(state, marked)


def whole_state(state: Any, sharding: Sharding, ranks: Ranks, *, on_all: bool = False) -> Any:
    """The state with every tensor gathered, on the first rank or on all; itself where all tensors are whole."""
    if sharding.is_whole:
        return state
    from hasten.parallel.whole import whole

    return whole(state, ranks, on_all=on_all)


def own_part(sharding: Sharding, name: str, saved: Any, like: Tensor) -> Any:
    """What this rank holds of a saved tensor, whole or in pieces, as it holds `like`. name: of the parameter that it
    belongs to. Of one in pieces only the part that is held is read, unless it is a share of a layer."""
    if isinstance(saved, Pieced) and hasattr(like, "to_local") and saved.shape == like.shape:
        from hasten.parallel.slabs import part_read

        return part_read(saved.region, cast("Any", like))
    saved = assembled(saved)
    own = sharding.share(name, saved) if isinstance(saved, Tensor) else saved
    if not hasattr(like, "to_local"):
        return own
    from hasten.parallel.whole import part_of

    return part_of(own, like)
