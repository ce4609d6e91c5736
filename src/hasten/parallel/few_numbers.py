"""A few numbers that ranks tell each other in every step: a norm, a total.

gloo computes a collective on threads of its own, which are woken on both sides while the cores compute: 1.3 to 3.3 ms
where a message takes 0.2 to 0.5 (two processes, two cores). So over gloo, in groups of few, each rank writes to each
other one.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.facts.ranks import Ranks

_FEW = 8  # ranks, each of which writes to all others
_TAG = 1  # what stages hand on has another


def from_each(numbers: Tensor, ranks: Ranks) -> list[Tensor]:
    """What each rank tells, in their order; of one shape and dtype. All ranks call it alike."""
    found = [numbers if rank == ranks.rank else torch.empty_like(numbers) for rank in range(ranks.size)]
    if not ranks.many:
        return found
    if not _by_messages(numbers, ranks):
        dist.all_gather(found, numbers.clone(), group=ranks.group)
        return found
    others = [rank for rank in range(ranks.size) if rank != ranks.rank]
    begun = [dist.irecv(found[rank], group=ranks.group, group_src=rank) for rank in others]
    begun += [dist.isend(numbers, group=ranks.group, group_dst=rank) for rank in others]
    _wait(begun)
    return found


class FromOne:
    """What one rank tells all others. All ranks make it alike, early: gloo sends nothing that is not asked for yet."""

    def __init__(self, numbers: Tensor, teller: int, ranks: Ranks) -> None:
        """numbers: where they come, or which they are. teller: its number in the group."""
        self._numbers, self._teller, self._ranks = numbers, teller, ranks
        asks = ranks.rank != teller and _by_messages(numbers, ranks)
        self._asked = dist.irecv(numbers, group=ranks.group, group_src=teller, tag=_TAG) if asks else None

    def told(self) -> Tensor:
        """All ranks call it alike; the teller when the numbers are there."""
        numbers, ranks = self._numbers, self._ranks
        if self._asked is not None:
            self._asked.wait()
        elif _by_messages(numbers, ranks):
            others = [rank for rank in range(ranks.size) if rank != self._teller]
            _wait([dist.isend(numbers, group=ranks.group, group_dst=rank, tag=_TAG) for rank in others])
        else:
            dist.broadcast(numbers, group=ranks.group, group_src=self._teller)
        return numbers


def _by_messages(numbers: Tensor, ranks: Ranks) -> bool:
    return numbers.device.type == "cpu" and ranks.size <= _FEW


def _wait(begun: list[dist.Work | None]) -> None:
    for work in begun:
        assert work is not None  # of a group that this rank belongs to
        work.wait()
