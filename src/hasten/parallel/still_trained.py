"""Several ranks divide what a model trains when a run begins: a parameter that it trains later has no place there.

Replicas would sum no gradients of it, stages would not know that they share it, and each rank would go its own way,
silently. So what is trained is compared around every call of the loss, which is where a model can have changed since.
Inside the call, because torch's parts are whole and other objects there, and a user's code meets those.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hasten.errors import JobError


class StillTrained:
    """A loss function that raises JobError where its model trains other parameters than in the first training call."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any]) -> None:
        self._loss = loss
        self._held = list[tuple[str, dict[str, Any]]]()  # of each module: its name, and where its parameters are found
        self._trained = list[bool]()

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        if not torch.is_grad_enabled():
            return self._loss(model, batch)
        if not self._held:
            self._held = [(name, each._parameters) for name, each in model.named_modules() if each._parameters]
            self._trained = self._trains()
        try:
            return self._loss(model, batch)
        finally:  # a stage of a pipeline leaves by an exception
            self._check()

    def _parameters(self) -> list[Tensor]:
        return [each for _, held in self._held for each in held.values() if each is not None]

    def _trains(self) -> list[bool]:
        return [each.requires_grad for each in self._parameters()]

    def _check(self) -> None:
        trains = self._trains()
        if trains == self._trained:
            return
        names = [f"{name}.{own}" for name, held in self._held for own, each in held.items() if each is not None]
        changed = [name for name, *pair in zip(names, self._trained, trains, strict=True) if pair[0] != pair[1]]
        raise JobError(
            "model",
            f"begins or ceases to train {', '.join(changed[:3])} in a run, and its ranks have divided what it trained "
            "at first",
            "hold it still by a learning rate of 0, or train in two runs, the second from the weights of the first",
        )
