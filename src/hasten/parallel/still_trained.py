"""Several ranks divide what a model holds and trains when a run begins: what comes later has no place there.

Replicas would sum no gradients of it, stages would not know that they share it, and each rank would go its own way,
silently. So it is compared around every call of the loss.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import nn

from hasten.errors import JobError

_SHOWN = 3


class StillTrained:
    """A loss function that raises JobError where its model goes into a call, or comes out of one, with other modules or
    parameters than when begin() was called, or trains others. Before begin() it looks at nothing."""

    def __init__(self, loss: Callable[[nn.Module, Any], Any], model: nn.Module) -> None:
        self._loss, self._model = loss, model
        self._at_first: _Held | None = None
        self._places: _Places | None = None

    def begin(self) -> None:
        """From here on: behind the optimizers, for Job.parameters may freeze what they do not move."""
        self._at_first = _held_by(self._model)

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        if self._at_first is None:
            return self._loss(model, batch)
        trains = torch.is_grad_enabled()
        places = self._checked(self._at_first) if trains or self._places is None else self._places
        before = places.at_last if trains else places.trained()
        try:
            found = self._loss(model, batch)
        except BaseException:
            # As a stage of a pipeline leaves: what its loss would have put back behind the last block is put back here.
            places.train(before)
            raise
        if trains:
            self._checked(self._at_first)
        return found

    def _checked(self, first: _Held) -> _Places:
        """Where the model keeps what it holds. Raises JobError where that is something else."""
        if self._places is not None and self._places.are_as_they_were():
            return self._places
        now = _held_by(self._model)
        told = [
            f"{what} {', '.join(names[:_SHOWN])}"
            for what, names in (
                ("has made", [name for name in now.trains if name not in first.trains]),
                ("has lost", [name for name in first.trains if name not in now.trains]),
                ("has put another layer into the place of", first.replaced(now)),
                ("begins to train", first.trained_otherwise(now, then=False)),
                ("ceases to train", first.trained_otherwise(now, then=True)),
            )
            if names
        ]
        if told:
            raise JobError(
                "model",
                f"{' and '.join(told)} in a run, and its processes have divided what it held and trained at the start",
                "make and freeze all in Job.model; a second run can go on from the first one's weights: --weights",
            )
        self._places = _Places(self._model)
        return self._places


class _Held(NamedTuple):
    """By name. trains: of each parameter. layers: that hold parameters."""

    trains: dict[str, bool]
    layers: dict[str, nn.Module]

    def trained_otherwise(self, other: _Held, *, then: bool) -> list[str]:
        """Names of those that both hold, and train otherwise. then: whether it was trained here."""
        return [
            name for name, trained in self.trains.items() if trained is then and other.trains.get(name) is (not then)
        ]

    def replaced(self, other: _Held) -> list[str]:
        names = [name for name, layer in self.layers.items() if other.layers.get(name, layer) is not layer]
        return [name for name in names if not any(name.startswith(f"{each}.") for each in names)]


def _held_by(model: nn.Module) -> _Held:
    trains = {name: each.requires_grad for name, each in model.named_parameters(remove_duplicate=False)}
    layers = model.named_modules(remove_duplicate=False)
    return _Held(trains, {name: each for name, each in layers if next(each.parameters(), None) is not None})


class _Places:
    """Where modules keep their parameters and each other, and how these look: a walk over the model would take longer
    in each call."""

    def __init__(self, model: nn.Module) -> None:
        modules = [*model.modules()]
        self._parameters = [(each._parameters, name) for each in modules for name in each._parameters]
        self._holders = [each._parameters for each in modules]
        self._children = [each._modules for each in modules]
        self._known = self._look()

    @property
    def at_last(self) -> list[bool]:
        """Which were trained when they were found as they should be."""
        return self._known[2]

    def are_as_they_were(self) -> bool:
        return self._look() == self._known

    def _look(self) -> tuple[list[int], list[int], list[bool]]:
        """Parameters themselves are others while they are gathered."""
        layers = [id(each) for held in self._children for each in held.values()]
        return [*map(len, self._holders)], layers, self.trained()

    def trained(self) -> list[bool]:
        return [(each := held.get(name)) is not None and each.requires_grad for held, name in self._parameters]

    def train(self, flags: list[bool]) -> None:
        for (held, name), trained in zip(self._parameters, flags, strict=True):
            if (each := held.get(name)) is not None:
                each.requires_grad_(trained)
