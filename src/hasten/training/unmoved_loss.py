"""An evaluation computes the same loss as training does, and a loss has no mode: what it holds of its own, such as a
teacher that follows the model or a running centre, would move with every evaluation. Here it comes back.

What an evaluation makes or fills for the first time stays, such as a table for the length of its last batch: the module
remembers that it has it. So does what had stood still in the first evaluations, when all was copied, and in training.
That this is so can be asked.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import nn

from hasten.facts.machine import free_memory, ranks_here
from hasten.training.buffer_copies import Copies
from hasten.training.forms import dense_bytes
from hasten.training.loss_parameters import LossParameters
from hasten.training.moving_buffers import Moving, affordable_trial


class UnmovedLoss:
    """Call it around each evaluation. left_moved: the names of what the last one has moved or made, and that stays."""

    def __init__(self, held: LossParameters) -> None:
        holders = [*held.holders, *(module._buffers for module in held.modules)]
        size = sum(dense_bytes(each) for holder in holders for each in holder.values())
        trial = affordable_trial(size, free_memory() / ranks_here())
        self._held, self._copies, self.left_moved = held, Copies(), list[str]()
        self._moving = Moving(holders, apart=held.of_model(), trial_windows=trial)
        self._containers = [
            module for module in held.modules if isinstance(module, nn.ParameterList | nn.ParameterDict)
        ]

    @contextmanager
    def __call__(self) -> Iterator[None]:
        moving = self._moving
        moving.look()
        self._copies.take(moving.holders, moving.places, large_on_host=True)
        names = [*map(set, moving.holders)]
        contained = [*map(set, (module._parameters for module in self._containers))]
        try:
            yield
        finally:
            for module, before in zip(self._containers, contained, strict=True):
                for name in module._parameters.keys() - before:
                    del module._parameters[name]
            self._held.fit_containers()
            left = self._copies.put_contents_back()
            made = [name for holder, had in zip(moving.holders, names, strict=True) for name in holder.keys() - had]
            self.left_moved = sorted({*left, *made, *moving.copy_what_moved()})
