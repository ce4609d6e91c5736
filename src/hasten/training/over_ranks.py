"""What a run over several ranks does otherwise, by how they hold its model: nothing in one process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import Tensor

from hasten.parallel.grid import DATA
from hasten.parallel.options import ReplicaOptions
from hasten.parallel.replicate import Replica

if TYPE_CHECKING:
    from hasten.parallel.divided import Divided
    from hasten.parallel.shard import Sharded
    from hasten.training.run import Run


def divided(run: Run) -> Divided | None:
    """Let ranks hold layers together, where the plan wants that and there are several. Before anything else holds the
    model's parameters."""
    ways = run.setup.tensor
    if ways is None or run.grid.mesh is None:
        return None
    from hasten.parallel.tensor import divide  # few runs need it
    from hasten.training.same_when_divided import checked_on_a_batch

    return checked_on_a_batch(run, lambda: divide(run.model, ways.items(), run.grid.model, run.grid.all))


def sharded(run: Run) -> Sharded | None:
    """Take what a rank holds of the model apart, where the plan wants that and there are several of them. Before
    anything else holds its parameters."""
    options, ranks, mesh = run.setup.shard, run.grid.data, run.grid.mesh
    if options is None or not ranks.many:
        return None
    from hasten.parallel.shard import Sharded  # it takes a second to load

    return Sharded(
        run.job.loss,
        run.model,
        ranks,
        run.device,
        keeps_gathered=options.keeps_gathered,
        mesh=None if mesh is None else mesh[DATA],
    )


def replica(run: Run) -> Replica | None:
    """The loss over all ranks, where each holds the whole of what it holds and there are several."""
    ranks = run.grid.data
    if run.sharded is None and not ranks.many and run.ranks.many and run.setup.replica != ReplicaOptions():
        run.notices.append("communication: all processes hold one model together, so there are no replicas that talk")
    if run.sharded is not None or not ranks.many:
        return None
    return Replica(run.job.loss, run.model, ranks, run.setup.replica)


def marked(run: Run, named: Mapping[str, Any]) -> dict[str, Any]:
    """Tensors by the names of the model's state, with a mark on those of which this rank holds a share."""
    return dict(named) if run.divided is None else run.divided.marked(named)


def whole_state(run: Run, state: Any, *, on_all: bool = False) -> Any:
    """A tree with every tensor whole, on the leader, or on all ranks; the tree itself where all are."""
    if run.sharded is None and run.divided is None:
        return state
    from hasten.parallel.whole import whole

    return whole(state, run.ranks, on_all=on_all)


def part_of(whole: Tensor, like: Tensor) -> Tensor:
    """What this rank holds of a tensor that was saved whole, as it holds `like`."""
    if not hasattr(like, "to_local"):
        return whole
    from hasten.parallel.whole import part_of

    return part_of(whole, like)
