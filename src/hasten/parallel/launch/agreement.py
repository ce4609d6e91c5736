"""What any rank wants, known to all of them at the same step.

Each rank says what it wants as numbers, and the largest of all ranks' counts: a checkpoint, the end. The exchange runs
behind the next optimizer step and is read after it, so that nobody waits; what is wanted comes one step later.
"""

from __future__ import annotations

from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor

from hasten.facts.ranks import wait_seconds


class Agreement:
    """All ranks make it together, and call each method equally often and in the same order."""

    def __init__(self) -> None:
        patience = timedelta(seconds=wait_seconds())
        # Beside the gradients, and on the host whatever the device.
        self._group = dist.new_group(backend="gloo", timeout=patience)
        self._under_way: tuple[Tensor, dist.Work] | None = None

    def of_last_step(self, *wishes: int) -> tuple[int, ...]:
        """Say what this rank wants, as numbers from 0 on. The largest of what each rank said at the call before this
        one; zeros at the first."""
        before, self._under_way = self._under_way, self._ask(wishes)
        return _largest(*before) if before is not None else (0,) * len(wishes)

    def at_once(self, *wishes: int) -> tuple[int, ...]:
        """The largest of what each rank says now. Waits for all of them."""
        return _largest(*self._ask(wishes))

    def _ask(self, wishes: tuple[int, ...]) -> tuple[Tensor, dist.Work]:
        said = torch.tensor(wishes)
        work = dist.all_reduce(said, dist.ReduceOp.MAX, group=self._group, async_op=True)
        assert work is not None  # of a group that this rank belongs to
        return said, work


def _largest(said: Tensor, work: dist.Work) -> tuple[int, ...]:
    work.wait()
    return tuple(said.tolist())
