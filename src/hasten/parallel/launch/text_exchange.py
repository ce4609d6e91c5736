"""Short texts between the ranks of a run, beside the training.

On a process group of its own, so that a thread that saves can communicate while the training does. Every wait has a
timeout, and ends at once where the process at the other end has gone.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.facts.ranks import Ranks, wait_seconds


class Exchange:
    """All ranks make it together, and call each method equally often and in the same order, in one thread of each.
    Raises what torch does when a rank does not come."""

    def __init__(self, ranks: Ranks) -> None:
        self.ranks = ranks
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=wait_seconds()))

    def from_leader(self, text: str) -> str:
        """What the leader says, on all ranks."""
        said = _bytes_of(text if self.ranks.leads else "")
        size = torch.tensor([len(said)])
        dist.broadcast(size, src=0, group=self._group)
        found = said if self.ranks.leads else torch.empty(int(size), dtype=torch.uint8)
        if len(found):
            dist.broadcast(found, src=0, group=self._group)
        return _text_of(found)

    def to_leader(self, text: str) -> list[str]:
        """What each rank says, by rank, on the leader; nothing on others."""
        said, leads = _bytes_of(text), self.ranks.leads
        sizes = [torch.empty(1, dtype=torch.int64) for _ in range(self.ranks.size)]
        dist.all_gather(sizes, torch.tensor([len(said)]), group=self._group)
        longest = max(map(int, sizes))
        if not longest:
            return [""] * self.ranks.size if leads else []
        padded = torch.zeros(longest, dtype=torch.uint8)
        padded[: len(said)] = said
        found = [torch.empty_like(padded) for _ in range(self.ranks.size)] if leads else None
        dist.gather(padded, found, dst=0, group=self._group)
        return [_text_of(each[: int(size)]) for each, size in zip(found or [], sizes, strict=leads)]


def _bytes_of(text: str) -> Tensor:
    return torch.frombuffer(bytearray(text.encode()), dtype=torch.uint8) if text else torch.empty(0, dtype=torch.uint8)


def _text_of(found: Tensor) -> str:
    return bytes(found.numpy()).decode()
