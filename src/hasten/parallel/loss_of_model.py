"""The loss with its model inside, as one module: what torch replicates or shards, so that its hooks enclose both.

A search for unused parameters begins at what a module returns, and must begin at what the backward pass begins at: the
mean or the total. A prediction and an auxiliary term, which is differentiated by itself, may reach other parameters, so
torch does not see them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from hasten.facts.job import Loss


class LossOfModel(nn.Module):
    """(batch) -> what the backward pass begins at, and what else the loss returned, unseen."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any], model: nn.Module) -> None:
        super().__init__()
        self._loss, self.model = loss, model

    def forward(self, batch: Any) -> tuple[Any, Unseen]:
        returned = self._loss(self.model, batch)
        return returned.total if isinstance(returned, Loss) else returned, Unseen(returned)


class Unseen:
    """Neither a tensor nor a container that torch would look for tensors in."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def with_total(self, differentiated: Any) -> Any:
        """What the loss returned, with the hooks that torch has put on what is differentiated."""
        return replace(self._loss, total=differentiated) if isinstance(self._loss, Loss) else differentiated
