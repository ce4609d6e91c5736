"""Requests and short texts between the ranks of a run, beside the training: each on a process group of its own.

Every wait has a timeout, and ends at once where the process at the other end has ended.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.facts.ranks import Ranks, wait_seconds


class Exchange:
    """Short texts, for a thread that saves while the training communicates.

    All ranks create it together, and call each method equally often and in the same order, in one thread of each.
    Raises RuntimeError, as torch does, when a rank does not come.
    """

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=wait_seconds()))

    def from_leader(self, text: str) -> str:
        """The leader's text, on all ranks."""
        texts = [text]
        dist.broadcast_object_list(texts, src=0, group=self._group)
        return texts[0]

    def to_leader(self, text: str) -> list[str]:
        """The text of each rank, by rank, on the leader; nothing on others."""
        texts: Any = [""] * self.ranks.size if self.ranks.leads else None
        dist.gather_object(text, texts, dst=0, group=self._group)
        return texts or []


class Agreement:
    """Requests of any rank, for example for a checkpoint or the end, that all ranks see at the same step.

    Each rank gives its requests as numbers, and the largest of all ranks' is used. The exchange runs beside the next
    optimizer step and is read after it, so no rank waits; a request is obeyed one step later. All ranks create it
    together, and call each method equally often and in the same order.
    """

    def __init__(self) -> None:
        # On the host whatever the device, so that it does not wait for gradients.
        self._group = dist.new_group(backend="gloo", timeout=timedelta(seconds=wait_seconds()))
        self._pending: tuple[Tensor, dist.Work] | None = None

    def of_last_step(self, *requests: int) -> tuple[int, ...]:
        """Give this rank's requests, numbers from 0 on. Returns the largest of each over ranks, of the call before this
        one; zeros at the first."""
        before, self._pending = self._pending, self._exchanged(requests)
        return _largest(*before) if before is not None else (0,) * len(requests)

    def at_once(self, *requests: int) -> tuple[int, ...]:
        """The largest of each request over ranks, now. Waits for all of them."""
        return _largest(*self._exchanged(requests))

    def _exchanged(self, requests: tuple[int, ...]) -> tuple[Tensor, dist.Work]:
        largest = torch.tensor(requests)
        work = dist.all_reduce(largest, dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None  # of a group that this rank belongs to
        return largest, work


def _largest(largest: Tensor, work: dist.Work) -> tuple[int, ...]:
    work.wait()
    return tuple(largest.tolist())
