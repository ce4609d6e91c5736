"""The weights that a run results in: those that reached the target, else the best by the job's stopping rule, else the
average, else those of the optimizers' eval(), else the present ones. Always in the form of the job's own model."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from hasten.facts.ranks import Ranks
from hasten.parallel.sharding import Owned, Sharding, Share
from hasten.training.state.averages import WeightAverage
from hasten.training.state.optimizer_modes import OptimizerModes
from hasten.training.state.sharded_state import whole_state

Weights = Mapping[str, Any]


class ResultWeights:
    """to_job: maps of a state_dict back to that of the job's own model, last applied first.

    step: whose weights were given last.
    """

    def __init__(
        self,
        model: nn.Module,
        average: WeightAverage | None,
        modes: OptimizerModes,
        to_job: list[Callable[[Weights], dict[str, Any]]],
        sharding: Sharding,
        ranks: Ranks,
    ) -> None:
        self._model, self._average, self._modes, self._to_job = model, average, modes, to_job
        self._sharding, self._ranks = sharding, ranks
        self._best: dict[str, Tensor] | None = None
        self.step = 0

    @property
    def notices(self) -> list[str]:
        if not self._modes or self._average is None:
            return []
        return [
            f"Job.average replaces the evaluation weights of {self._modes.names}: the mean of its training weights is "
            "evaluated and kept. Leave average out to use the optimizer's own"
        ]

    @contextmanager
    def in_model(self) -> Iterator[None]:
        """Inside, the model holds the weights to evaluate; after it, those of training, to the bit."""
        with self._modes.evaluating(), nullcontext() if self._average is None else self._average.in_place():
            yield

    def keep(self, step: int) -> None:
        """The weights that the model holds now are the result, unless others are kept later. Ranks call it together."""
        self._best, self.step = self._present(), step

    def get(self, step: int) -> dict[str, Tensor]:
        """The result, on the host. step: of the present weights. Ranks call it together."""
        if self._best is not None:
            return self._best
        self.step = step
        with self.in_model():
            return self._present()

    def to_save(self) -> dict[str, Tensor | Share | Owned]:
        """The tensors that get() would give, uncopied, so they change with the run; marked where ranks hold parts."""
        found = self._best
        if found is None:
            found = self._sharding.marked(self._in_job_form(self._uncopied()))
        return {key: each for key, each in found.items() if isinstance(each, Tensor | Share | Owned)}

    def _present(self) -> dict[str, Tensor]:
        marked = self._sharding.marked(self._model.state_dict())
        weights = self._in_job_form(whole_state(marked, self._sharding, self._ranks, on_all=True))
        # Copied one by one: tied weights must not share memory in a file.
        return {
            key: _on_host(each) if isinstance(each, Tensor) else copy.deepcopy(each) for key, each in weights.items()
        }

    def _uncopied(self) -> Weights:
        if self._average is not None:
            return self._average.named(self._model)
        if not self._modes:
            return self._model.state_dict()
        with self._modes.evaluating():
            state: dict[str, Any] = self._model.state_dict()
            return {key: each.detach().clone() if isinstance(each, Tensor) else each for key, each in state.items()}

    def _in_job_form(self, weights: Weights) -> dict[str, Any]:
        found = {key: each.detach() if isinstance(each, Tensor) else each for key, each in weights.items()}
        for to_job in reversed(self._to_job):
            found = to_job(found)
        return found

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "step": self.step}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._best, self.step = state["best"], state["step"]


def _on_host(tensor: Tensor) -> Tensor:
    copied = tensor.to("cpu", copy=True)
    return copied.contiguous() if tensor.layout is torch.strided else copied
