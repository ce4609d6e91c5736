"""What a run over several ranks does otherwise where each holds a part of the model: nothing in one process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from torch import Tensor

if TYPE_CHECKING:
    from hasten.parallel.shard import Sharded
    from hasten.training.run import Run


def sharded(run: Run) -> Sharded | None:
    """Take the model apart, where the plan wants that and there are several ranks. Before anything else holds its
    parameters."""
    options = run.setup.shard
    if options is None or not run.ranks.many:
        return None
    from hasten.parallel.shard import Sharded  # it takes a second to load

    return Sharded(run.job.loss, run.model, run.ranks, run.device, keeps_gathered=options.keeps_gathered)


def whole_state(run: Run, state: Any, *, on_all: bool = False) -> Any:
    """A tree with every tensor whole, on the leader, or on all ranks; the tree itself where all are."""
    if run.sharded is None:
        return state
    from hasten.parallel.whole import whole

    return whole(state, run.ranks, on_all=on_all)


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """What this rank holds of a tensor that was saved whole, as it holds `like`."""
    if not hasattr(like, "to_local"):
        return whole
    from hasten.parallel.whole import part_of

    return part_of(whole, like)
