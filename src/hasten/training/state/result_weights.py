"""The weights that a run results in: those that reached the target, else the best by Job.keep or Job.stop, else the
average, else those of the optimizers' eval(), else the present ones. Always in the form of the job's own model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hasten.facts.ranks import Ranks
from hasten.parallel.sharding import Owned, Sharding, Share
from hasten.training.setup.optimizers import OptimizerModes
from hasten.training.state.averages import WeightAverage
from hasten.training.state.sharded_state import whole_state

Weights = Mapping[str, Any]


@dataclass(slots=True)
class ResultWeights:
    """to_job: maps of a state_dict back to that of the job's own model, last applied first.

    best: the weights of the last keep(). step: that the weights of the last keep() or get() are of.
    """

    model: nn.Module
    average: WeightAverage | None
    modes: OptimizerModes
    to_job: list[Callable[[Weights], dict[str, Any]]]
    sharding: Sharding
    ranks: Ranks
    best: dict[str, Tensor] | None = None
    step: int = 0

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Inside, the model holds the weights to evaluate; after it, those of training, to the bit."""
        with self.modes.evaluating(), nullcontext() if self.average is None else self.average.in_place():
            yield

    def keep(self, step: int) -> None:
        """The weights that the model holds now are the result, unless others are kept later. Ranks call it together."""
        self.best, self.step = self._present(), step

    def get(self, step: int) -> dict[str, Tensor]:
        """The result, on the host. step: of the present weights. Ranks call it together."""
        if self.best is not None:
            return self.best
        self.step = step
        with self.in_model():
            return self._present()

    def to_save(self) -> dict[str, Tensor | Share | Owned]:
        """The tensors that get() would give, which may change with the run; marked where ranks hold parts."""
        found = self.best
        if found is None:
            found = self.sharding.marked(self._in_job_form(self._uncopied()))
        return {key: each for key, each in found.items() if isinstance(each, Tensor | Share | Owned)}

    def _present(self) -> dict[str, Tensor]:
        marked = self.sharding.marked(self.model.state_dict())
        weights = self._in_job_form(whole_state(marked, self.sharding, self.ranks, on_all=True))
        # Copied one by one: tied weights must not share memory in a file.
        return {
            key: _on_host(each) if isinstance(each, Tensor) else copy.deepcopy(each) for key, each in weights.items()
        }

    def _uncopied(self) -> Weights:
        """Copied where the model holds other weights between two steps."""
        if self.average is None and not self.modes:
            return self.model.state_dict()
        with self.in_model():
            state: dict[str, Any] = self.model.state_dict()
            return {key: each.detach().clone() if isinstance(each, Tensor) else each for key, each in state.items()}

    def _in_job_form(self, weights: Weights) -> dict[str, Any]:
        found = {key: each.detach() if isinstance(each, Tensor) else each for key, each in weights.items()}
        for to_job in reversed(self.to_job):
            found = to_job(found)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.best, self.step = state["best"], state["step"]


def _on_host(tensor: Tensor) -> Tensor:
    copied = tensor.to("cpu", copy=True)
    return copied.contiguous() if tensor.layout is torch.strided else copied
