"""How the ranks of a run hold one model and share its work: one class for each way, in a file of its own.

| class | file | a rank holds |
|---|---|---|
| Single | this one | the whole model, alone |
| Replicated | replicate/replicated.py | the whole model, and its share of each batch |
| Sharded | shard/sharded.py | a part of each parameter, and its share of each batch |
| TensorParallel | tensor/tensor_parallel.py | a share of each layer; over data ranks one of the three above |
| Pipelined | pipeline/pipelined.py | some of the blocks; over data ranks replicas or parts |

A step, an evaluation and a saved state know only what is in this file.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from hasten.errors import JobError
from hasten.facts.job import Loss
from hasten.parallel.collectives import copy_from_first, gather_over_ranks
from hasten.parallel.grid import Grid
from hasten.parallel.sharding import Sharding

Value = TypeVar("Value")
LossFunction = Callable[[nn.Module, Any], "Loss | Tensor"]


class Window(Protocol):
    """The microbatches of one optimizer step, as a strategy sees them."""

    microbatches: list[tuple[Any, int]]
    """Those that wait for the window's last one, with their samples; empty at the start of a window."""

    def differentiate(self, batch: Any, samples: int, last: bool) -> Tensor:
        """Forward and backward of one microbatch; its mean loss, detached."""
        ...

    def objective(self, total: Tensor) -> Tensor:
        """What a backward pass begins at, of a microbatch's total."""
        ...

    def add(self, total: Tensor, count: Tensor, samples: int) -> Tensor:
        """Count microbatches whose backward passes are done; the mean loss so far, detached."""
        ...


class Strategy(Protocol):
    """grid: the ranks, by what they do. sharding: what this rank holds, complete once prepare() has returned.
    notices: what a person should know."""

    grid: Grid
    sharding: Sharding
    notices: list[str]

    def prepare(self, model: nn.Module, loss: LossFunction) -> tuple[nn.Module, LossFunction]:
        """The model on its device, changed in place to what this rank holds, and the loss function to train with.
        Called once, before optimizers are built. Raises JobError, PlanError or Misconfigured, on all ranks."""
        ...

    def forward_backward(self, window: Window, batch: Any, samples: int, last: bool) -> Tensor:
        """One microbatch of `samples` samples; its mean loss, detached. Gradients are reduced with the last one."""
        ...

    def forward(self, call: Callable[[Any], Any], batch: Any) -> Any:
        """What `call` returns for an evaluation's batch, without gradients; None on a rank that computes no loss."""
        ...

    def agree(self, compute: Callable[[], Value]) -> Value:
        """What `compute` returns, the same on all ranks; called on those whose forward() computes a loss."""
        ...


@dataclass(frozen=True, kw_only=True, slots=True)
class Workload:
    """What a strategy needs of the run to compare itself with the undivided model.

    batch: () -> the first microbatch, on the device. samples: in it.
    call: (loss, model, batch) -> what the loss returned, checked, under the run's autocast.
    mean: of what a loss returned, differentiable. weighed: (returned, samples) -> total and count.
    untouched: inside, buffers, modes, random generators and declared state are restored at the end.
    """

    batch: Callable[[], Any]
    samples: Callable[[], int]
    call: Callable[[LossFunction, nn.Module, Any], Loss | Tensor]
    mean: Callable[[Loss | Tensor], Tensor]
    weighed: Callable[[Loss | Tensor, int], tuple[Tensor, Any]]
    untouched: Callable[[nn.Module], AbstractContextManager[None]]


class Single:
    """One process, which holds all and computes all."""

    def __init__(self, device: torch.device, grid: Grid | None = None) -> None:
        self.grid = grid or Grid()
        self.sharding, self.notices = Sharding(grid=self.grid), list[str]()
        self._device = device

    def prepare(self, model: nn.Module, loss: LossFunction) -> tuple[nn.Module, LossFunction]:
        return model.to(self._device), loss

    def forward_backward(self, window: Window, batch: Any, samples: int, last: bool) -> Tensor:
        return window.differentiate(batch, samples, last)

    def forward(self, call: Callable[[Any], Any], batch: Any) -> Any:
        with torch.no_grad():
            return call(batch)

    def agree(self, compute: Callable[[], Value]) -> Value:
        return first_of_all(compute, self.grid, self._device)


def first_of_all(compute: Callable[[], Value], grid: Grid, device: torch.device, *, here: bool = True) -> Value:
    """What `compute` returns on the first rank that calls it (where `here`), on all ranks."""
    mine = [compute()] if here else []
    return gather_over_ranks(mine, grid.all, device)[0] if grid.all.many else mine[0]


class FollowedBuffers:
    """A loss function before which, in training, the buffers of declared modules are copied from the first rank. They
    must have one shape on all ranks."""

    def __init__(self, loss: LossFunction, modules: list[nn.Module], grid: Grid) -> None:
        self._loss, self._modules, self._ranks = loss, modules, grid.data

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        if torch.is_grad_enabled():
            copy_from_first([each for module in self._modules for each in module.buffers()], self._ranks)
        return self._loss(model, batch)


def refuse_sparse(model: nn.Module, technique: str) -> None:
    """Raises JobError for an embedding with sparse gradients, which `technique` cannot sum."""
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            what = f"has sparse gradients in {name}, but `{technique}` needs dense ones"
            raise JobError("model", what, f"build it with sparse=False, or remove `{technique}` from the plan")
