"""The loss with its model inside, as one module: what torch replicates or shards, so that its hooks enclose both.

DistributedDataParallel looks for unused parameters from what a module returns. That must be what the backward pass
begins at: a prediction and an auxiliary term may reach other parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from torch import nn

from hasten.facts.job import Loss


class LossModule(nn.Module):
    """(batch) -> the tensor that the backward pass begins at, and the whole return value, hidden from torch."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any], model: nn.Module) -> None:
        super().__init__()
        self._loss, self.model = loss, model

    def forward(self, batch: Any) -> tuple[Any, Hidden]:
        returned = self._loss(self.model, batch)
        return returned.total if isinstance(returned, Loss) else returned, Hidden(returned)


class Hidden:
    """Neither a tensor nor a container in which torch looks for tensors."""

    def __init__(self, loss: Any) -> None:
        self._loss = loss

    def with_total(self, differentiated: Any) -> Any:
        """What the loss returned, with the hooks that torch has put on the differentiated tensor."""
        return replace(self._loss, total=differentiated) if isinstance(self._loss, Loss) else differentiated
