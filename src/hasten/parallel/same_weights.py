"""Replicas begin with the same weights and make the same updates, so what they hold is the same; or it is refused.

A loss may move parameters by itself. What follows from the weights alone, such as a teacher's average, is the same on
each rank. What is drawn, or taken from a rank's own samples, such as a row that is begun anew, is not: from there on
each replica trains another model, and one of them is saved.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.errors import JobError
from hasten.facts.ranks import Ranks

# Of a parameter's size: processors that sum in another order drift apart by less.
_ROUNDING = 1e-3
_SHOWN = 3


def check_same(parameters: Iterable[tuple[str, Tensor]], ranks: Ranks) -> None:
    """Raises JobError, on all of these ranks, where they hold other values. parameters: by name, the same ones on each.

    Two sums of each are compared: a pass over memory, and two small messages.
    """
    named = [(name, each.detach()) for name, each in parameters if each.numel()]
    if not ranks.many or not named:
        return
    sums = torch.stack([each.double().sum() for _, each in named])
    sizes = torch.stack([each.double().square().sum().sqrt() for _, each in named])
    leaders = torch.stack([sums, sizes])
    dist.broadcast(leaders, group=ranks.group, group_src=0)
    apart = torch.maximum((sums - leaders[0]).abs(), (sizes - leaders[1]).abs()) > _ROUNDING * leaders[1]
    told = apart.to(torch.int32)
    dist.all_reduce(told, dist.ReduceOp.MAX, group=ranks.group)
    names = [name for (name, _), differs in zip(named, told.tolist(), strict=True) if differs]
    if names:
        raise JobError(
            "loss",
            f"has moved {', '.join(names[:_SHOWN])} by itself, and otherwise on each process: they hold other weights",
            "let it move them by what is the same on all, or keep in buffers what it draws or takes from its samples",
        )
