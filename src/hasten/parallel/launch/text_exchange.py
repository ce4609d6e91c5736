"""Short texts between the ranks of a run, beside the training.

On a process group of its own, so that a thread that saves can communicate while the training does. Every wait has a
timeout, and ends at once where the process at the other end has ended.
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch.distributed as dist

from hasten.facts.ranks import Ranks, wait_seconds


class Exchange:
    """All ranks create it together, and call each method equally often and in the same order, in one thread of each.
    Raises RuntimeError, as torch does, when a rank does not come."""

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
