"""Several ranks divide what a model holds and trains when a run begins: what comes later has no place there.

Replicas would sum no gradients of it, stages would not know that they share it, and each rank would go its own way,
silently. So it is compared around every call of the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from hasten.errors import JobError

_SHOWN = 3


class StillTrained:
    """A loss function that raises JobError where its model goes into a call, or comes out of one, with other parameters
    than when this was made, or trains others."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any], model: nn.Module) -> None:
        self._loss, self._at_first = loss, _trains(model)
        self._children, self._parameters = list[dict[str, Any]](), list[dict[str, Any]]()  # of each module
        self._known: tuple[int, list[bool]] | None = None  # how they look when all is as it was

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        trains = torch.is_grad_enabled()
        if trains or self._known is None:
            self._check(model)
        before = [(held, name, each.requires_grad) for held, name, each in self._present()]
        try:
            found = self._loss(model, batch)
        except BaseException:
            # As a stage of a pipeline leaves: what its loss would have put back behind the last block is put back here.
            for held, name, trained in before:
                if (each := held.get(name)) is not None:
                    each.requires_grad_(trained)
            raise
        if trains:
            self._check(model)
        return found

    def _present(self) -> list[tuple[dict[str, Any], str, Tensor]]:
        return [(held, name, each) for held in self._parameters for name, each in held.items() if each is not None]

    def _look(self) -> tuple[int, list[bool]]:
        """A walk over the whole model would take longer in every call than what it compares."""
        return sum(map(len, self._children)), [each.requires_grad for _, _, each in self._present()]

    def _check(self, model: nn.Module) -> None:
        if self._known is not None and self._look() == self._known:
            return
        now, before = _trains(model), self._at_first
        told = [
            f"{what} {', '.join(names[:_SHOWN])}"
            for what, names in (
                ("has made", [name for name in now if name not in before]),
                ("has lost", [name for name in before if name not in now]),
                ("begins to train", [name for name, trained in now.items() if trained and before.get(name) is False]),
                ("ceases to train", [name for name, trained in before.items() if trained and now.get(name) is False]),
            )
            if names
        ]
        if told:
            raise JobError(
                "model",
                f"{' and '.join(told)} in a run, and its processes have divided what it held and trained at the start",
                "make and freeze all in Job.model; a second run can go on from the first one's weights: --weights",
            )
        self._children = [each._modules for each in model.modules()]
        self._parameters = [each._parameters for each in model.modules()]
        self._known = self._look()


def _trains(model: nn.Module) -> dict[str, bool]:
    return {name: each.requires_grad for name, each in model.named_parameters(remove_duplicate=False)}
