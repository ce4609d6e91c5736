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
from hasten.parallel.fingerprint import fingerprint
from hasten.parallel.replicate import gather_over_ranks

# Of a parameter's size. Replicas make the same updates; processors that round otherwise drift apart by far less.
_ROUNDING = 1e-4
_SHOWN = 3


def check_same(parameters: Iterable[tuple[str, Tensor]], ranks: Ranks, everyone: Ranks, device: torch.device) -> None:
    """Raises JobError, on everyone, where some of these ranks hold other values. parameters: by name, the same ones on
    each of the ranks."""
    if not ranks.many:
        return
    told = gather_over_ranks(_apart([*parameters], ranks), everyone, device)
    if told:
        names = ", ".join([*dict.fromkeys(told)][:_SHOWN])
        raise JobError(
            "loss",
            f"has moved {names} otherwise on each process, and so they hold other weights",
            "let it move them by what is the same on all, or keep in buffers what it draws or takes from its samples; "
            "max_norm of an Embedding moves them as well",
        )


def _apart(named: list[tuple[str, Tensor]], ranks: Ranks) -> list[str]:
    """Names of those that are not the first rank's."""
    if not named:
        return []
    own = torch.stack([fingerprint(each) for _, each in named])
    leaders = own.clone()
    dist.broadcast(leaders, group=ranks.group, group_src=0)
    far = (own - leaders).abs().amax(1) > _ROUNDING * leaders[:, 1]
    apart = far | (own[:, 2] != leaders[:, 2]) | (own.isfinite() != leaders.isfinite()).any(1)
    return [name for (name, _), differs in zip(named, apart.tolist(), strict=True) if differs]
