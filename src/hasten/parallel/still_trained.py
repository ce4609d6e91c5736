"""Several ranks divide what a model holds and trains when a run begins: what comes later has no place there.

Replicas would sum no gradients of it, stages would not know that they share it, and each rank would go its own way,
silently. So it is compared around every call of the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from hasten.errors import JobError

_SHOWN = 3


class StillTrained:
    """A loss function that raises JobError where its model goes into a call, or comes out of one, with other parameters
    than when this was made, or trains others."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any], model: nn.Module) -> None:
        self._loss, self._at_first = loss, _trains(model)
        # Where modules have theirs, and others; a walk over the model would take longer in each call than these.
        self._places, self._held = list[tuple[dict[str, Any], str]](), list[dict[str, Any]]()
        self._known: tuple[int, list[bool]] | None = None  # how they look when all is as it was

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        trains = torch.is_grad_enabled()
        _, before = self._checked(model) if trains or self._known is None else self._look()
        try:
            found = self._loss(model, batch)
        except BaseException:
            # As a stage of a pipeline leaves: what its loss would have put back behind the last block is put back here.
            self._put_back(before)
            raise
        if trains:
            self._checked(model)
        return found

    def _look(self) -> tuple[int, list[bool]]:
        """How many there are, and what is trained."""
        flags = [(each := held.get(name)) is not None and each.requires_grad for held, name in self._places]
        return sum(map(len, self._held)), flags

    def _put_back(self, flags: list[bool]) -> None:
        for (held, name), trained in zip(self._places, flags, strict=True):
            if (each := held.get(name)) is not None:
                each.requires_grad_(trained)

    def _checked(self, model: nn.Module) -> tuple[int, list[bool]]:
        """How it looks. Raises JobError where it is another one."""
        look = self._look()
        if look == self._known:
            return look
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
        modules = [*model.modules()]
        self._places = [(each._parameters, name) for each in modules for name in each._parameters]
        self._held = [held for each in modules for held in (each._parameters, each._modules)]
        self._known = self._look()
        return self._known


def _trains(model: nn.Module) -> dict[str, bool]:
    return {name: each.requires_grad for name, each in model.named_parameters(remove_duplicate=False)}
