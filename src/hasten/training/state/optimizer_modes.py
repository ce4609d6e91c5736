"""Optimizers with train() and eval(): between the two, the parameters hold other weights.

A schedule-free optimizer computes gradients at one point and asks to be evaluated at another. Its eval() writes the
weights to evaluate and to keep into the parameters, its train() brings those of training back. Any optimizer that has
both methods is treated so.

A run is in training mode from its start on, and in evaluation mode only inside `evaluating`. eval() and train() round,
so one after the other does not give the same bits. The parameters are therefore restored from a copy: how often a run
is evaluated or saved does not change what it learns.

Source: The Road Less Scheduled, Defazio et al. 2024, arXiv:2405.15682; https://github.com/facebookresearch/schedule_free
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from hasten.training.step_parts.master_weights import MasterWeights


def with_modes(optimizers: Iterable[Optimizer]) -> list[Any]:
    """Those that have both methods."""
    return [each for each in optimizers if all(callable(getattr(each, name, None)) for name in ("train", "eval"))]


class OptimizerModes:
    """Those of a run's optimizers. False where none of them has modes."""

    def __init__(self, model: nn.Module, masters: MasterWeights, optimizers: Iterable[Optimizer]) -> None:
        self._model, self._masters, self._optimizers = model, masters, with_modes(optimizers)

    def __bool__(self) -> bool:
        return bool(self._optimizers)

    @property
    def names(self) -> str:
        return ", ".join(type(each).__name__ for each in self._optimizers)

    @contextmanager
    def evaluating(self) -> Iterator[None]:
        """Inside the block the model holds the weights to evaluate and to keep; after it, those of training, to the
        bit. Raises what the optimizers' eval() and train() raise."""
        if not self._optimizers:
            yield
            return
        tensors = [*self._model.parameters(), *self._masters.tensors()]
        own = [each.detach().clone() for each in tensors]
        try:
            for each in self._optimizers:
                each.eval()
            self._masters.write_back()
            yield
        finally:
            for each in self._optimizers:
                each.train()
            _copy(own, tensors)


@torch.no_grad()
def _copy(source: Sequence[Tensor], target: Sequence[Tensor]) -> None:
    for tensor, content in zip(target, source, strict=True):
        tensor.copy_(content)
