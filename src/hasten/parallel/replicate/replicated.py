"""Every rank holds the whole model, computes its share of each global batch, and applies the same update.

Built on torch's DistributedDataParallel, which reduces gradients in buckets while the backward pass still runs. It
divides by the number of ranks; the step multiplies that back, because the true denominator is the global count, of
which ranks need not have equal shares.

Some steps, or some ranks, may not use every parameter, as with mixtures of experts. So torch searches for unused ones:
without the search it stops at the second step. The search costs a walk over the graph and a small reduction a step; a
static graph (technique `communication`) avoids both.

Source: https://docs.pytorch.org/docs/stable/generated/torch.nn.parallel.DistributedDataParallel.html
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from hasten.parallel.collectives import copy_from_first
from hasten.parallel.grid import Grid
from hasten.parallel.loss_module import LossModule
from hasten.parallel.options import ReplicaOptions
from hasten.parallel.sharding import Sharding
from hasten.parallel.strategy import LossFunction, Value, Window, first_of_all


class Replicated:
    def __init__(self, device: torch.device, grid: Grid, options: ReplicaOptions | None = None) -> None:
        self.grid, self.sharding, self.notices = grid, Sharding(grid=grid), list[str]()
        self._device, self._options = device, options or ReplicaOptions()
        self._built: DistributedDataParallel | None = None
        self._has_reduced = False

    def prepare(self, model: nn.Module, loss: LossFunction) -> tuple[nn.Module, LossFunction]:
        model.to(self._device)
        copy_from_first([*model.parameters(), *model.buffers()], self.grid.data)
        self._module = LossModule(loss, model)

        def through_replica(model: nn.Module, batch: Any) -> Any:
            if not torch.is_grad_enabled():
                return loss(model, batch)
            differentiated, hidden = self._replica(batch)
            return hidden.with_total(differentiated)

        return model, through_replica

    def forward_backward(self, window: Window, batch: Any, samples: int, last: bool) -> Tensor:
        with nullcontext() if last else self._without_sync():
            return window.differentiate(batch, samples, last)

    def forward(self, call: Callable[[Any], Any], batch: Any) -> Any:
        with torch.no_grad():
            return call(batch)

    def agree(self, compute: Callable[[], Value]) -> Value:
        return first_of_all(compute, self.grid, self._device)

    @property
    def _replica(self) -> DistributedDataParallel:
        """Built at the first call: by then it is known which parameters are trained."""
        if self._built is None:
            group = self.grid.data.group
            self._built = DistributedDataParallel(
                self._module,
                process_group=group,
                init_sync=False,  # prepare() has copied parameters and buffers
                bucket_cap_mb=self._options.bucket_mb,  # pyright: ignore[reportArgumentType] fractions work as well
                find_unused_parameters=not self._options.static_graph,
                static_graph=self._options.static_graph,
            )
            if self._options.in_bf16:
                self._built.register_comm_hook(group, _in_bf16)
        return self._built

    def _without_sync(self) -> AbstractContextManager[None]:
        """Keep a microbatch's gradients on this rank. Must enclose the forward pass, which arms the reduction."""
        if self._replica.static_graph and not self._has_reduced:
            self._has_reduced = True  # torch records a static graph in its first backward pass, and must reduce there
            return nullcontext()
        return self._replica.no_sync()


def _in_bf16(group, bucket):  # without types: torch refuses annotations that are strings
    """torch's own hook, which torch accepts by its own name with NCCL alone; gloo sums bf16 as well."""
    return bf16_compress_hook(group, bucket)
