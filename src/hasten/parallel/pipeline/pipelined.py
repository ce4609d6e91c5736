"""Ranks hold one model as a pipeline: each the blocks of its stages, and all of them what lies around the blocks.

Built on torch.distributed.pipelining, whose schedules say which rank computes what when, and send activations and
their gradients. A stage computes the user's own loss on a microbatch, with its own blocks only (partial_forward.py).
What lies around the blocks has gradients on each stage that used it, as a tied embedding on the first and the last;
their sum is what one process would have.

Over data ranks, gradients are averaged once, after the last microbatch: DistributedDataParallel would search for unused
parameters behind a forward pass that most stages leave by an exception.

Source: https://docs.pytorch.org/docs/stable/distributed.pipelining.html; 1F1B: PipeDream-Flush, Narayanan et al. 2021,
arXiv:2006.09503; interleaved: arXiv:2104.04473.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hasten.errors import HastenError, PlanError
from hasten.parallel.collectives import copy_from_first, sum_gradients
from hasten.parallel.grid import DATA, Grid
from hasten.parallel.options import PipelineOptions, ShardOptions
from hasten.parallel.parity import Outcome, check_parity, failed_on_first_batch, gradients_of, noisy_weights
from hasten.parallel.pipeline.block_order import FIX, block_order
from hasten.parallel.pipeline.partial_forward import PartialForward
from hasten.parallel.pipeline.schedules import Schedules
from hasten.parallel.pipeline.stages import Stages, owned_parameters
from hasten.parallel.sharding import Sharding
from hasten.parallel.strategy import (
    LossFunction,
    Strategy,
    Value,
    Window,
    Workload,
    first_of_all,
    refuse_sparse,
)

Microbatches = list[tuple[Any, int]]


class Pipelined:
    """layers: the tensor parallelism of each stage; None without. shard: over data ranks; None replicates stages.

    streams: contexts in which every stage draws the same random numbers, of_step() and of_microbatch(number);
        before_block(number) and after_block(number) are called around each block.
    """

    def __init__(
        self,
        device: torch.device,
        grid: Grid,
        options: PipelineOptions,
        workload: Workload,
        streams: Any,
        *,
        layers: Strategy | None = None,
        shard: ShardOptions | None = None,
    ) -> None:
        self.grid, self.sharding = grid, Sharding(grid=grid)
        self.notices = list[str]() if layers is None else layers.notices
        self._device, self._options, self._workload, self._layers = device, options, workload, layers
        self._streams, self._shard_options = streams, shard if grid.data.many else None

    # ── set-up ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def prepare(self, model: nn.Module, loss: LossFunction) -> tuple[nn.Module, LossFunction]:
        refuse_sparse(model, "pipeline")
        if self._layers is None:
            model.to(self._device)
            copy_from_first([*model.parameters(), *model.buffers()], self.grid.all)
        else:
            model, loss = self._layers.prepare(model, loss)
        self._model, self._loss = model, loss
        names = self._cut(model)
        with noisy_weights(model, self._by_stage().share):
            whole = self._whole_outcome()
            self._free_other_stages()
            self._check(whole)
        if self._shard_options is not None:
            self._shard(self._shard_options)
        self._find_trained()
        cuts = ", ".join(self._stages.first_blocks)
        self.notices.append(f"pipeline: {len(names)} blocks in {self._options.chunks} stages, cut before {cuts}")
        return model, loss

    def _cut(self, model: nn.Module) -> list[str]:
        """Decide the stages; the blocks' names in their order."""
        options, workload = self._options, self._workload
        with workload.untouched(model):
            batch = workload.batch()
            names = block_order(model, options.blocks, lambda: self._call(batch))
        modules, chunks = [model.get_submodule(name) for name in names], options.chunks
        equal = [len(names) * stage // chunks for stage in range(1, chunks)]
        before = [names.index(name) for name in options.before] or equal
        if sorted({0, *before}) != [0, *before]:
            raise PlanError(
                f"before names {', '.join(options.before)}, which are not called in this order after the first block",
                where="pipeline",
                fix=f"write them in the order of their calls: {', '.join(names)}",
            )
        self._stages = Stages(names, before, self.grid.stages)
        self._forward = PartialForward(modules, self._streams.before_block, self._streams.after_block)
        splits = Sharding(grid=self.grid) if self._layers is None else self._layers.sharding
        owners, shapes, buffers = owned_parameters(model, self._stages, splits)
        self.sharding = Sharding(
            grid=self.grid,
            in_parts=self._shard_options is not None,
            splits=splits.splits,
            partial=splits.partial,
            owners=owners,
            shapes=shapes,
            buffer_owners=buffers,
        )
        inside = {module for block in modules for module in block.modules()}
        self._around = [each for each in model.modules() if each not in inside]
        self._sharded_stages: Any = None
        self._schedules = Schedules(self._stages, self._options.schedule, self._objective, self._device)
        self._find_trained()
        return names

    def _by_stage(self) -> Sharding:
        """Without shares of layers, which each rank holds before and after."""
        return Sharding(grid=self.grid, owners=self.sharding.owners)

    def _free_other_stages(self) -> None:
        """Parameters stay the same objects, because optimizers and checkpoints number them."""
        for name, parameter in self._model.named_parameters():
            if not self.sharding.has(name) and parameter.dim():
                parameter.data = parameter.data.new_empty((0, *parameter.shape[1:]))

    def _shard(self, options: ShardOptions) -> None:
        from hasten.parallel.pipeline.sharded_stages import ShardedStages  # it takes a second to load

        own = [self._forward.blocks[number] for stage in self._stages.own for number in self._stages.spans[stage]]
        others = [each for name, each in self._model.named_parameters() if not self.sharding.has(name)]
        self._sharded_stages = ShardedStages(self._model, own, others, self.grid.mesh[DATA], options)

    def _find_trained(self) -> None:
        named = [(name, each) for name, each in self._model.named_parameters() if self.sharding.has(name)]
        self._common = [each for name, each in named if each.requires_grad and name not in self.sharding.owners]
        self._trained = [each for _, each in named if each.requires_grad]

    # ── parity with the undivided model ─────────────────────────────────────────────────────────────────────────────

    def _first_microbatches(self) -> Microbatches:
        """The first one twice, because state that one leaves to the next must be seen."""
        return [(self._workload.batch(), self._workload.samples())] * 2

    def _whole_outcome(self) -> Outcome:
        workload, total_loss = self._workload, 0.0
        with workload.untouched(self._model), self._streams.of_step():
            for number, (batch, samples) in enumerate(self._first_microbatches()):
                with self._streams.of_microbatch(number):
                    returned = self._forward.run(self._stages.all_blocks, None, lambda each=batch: self._call(each))
                total, _ = workload.weighed(returned, samples)
                total.backward()
                total_loss += float(total.detach())
            self.sharding.complete(self._model.named_parameters())
            return Outcome(loss=total_loss, gradients=gradients_of(self._model))

    def _check(self, whole: Outcome) -> None:
        try:
            with self._workload.untouched(self._model):
                total, _, _ = self._run(self._first_microbatches(), lambda total: total)
                total = self._sum_over_stages(total.reshape(1))
                self.sharding.complete(self._model.named_parameters())
                divided = Outcome(loss=float(total), gradients=gradients_of(self._model))
        except HastenError:
            raise
        except Exception as error:
            raise failed_on_first_batch("a stage", error, technique="pipeline", fix=FIX) from error
        check_parity(whole, divided, self._by_stage(), self._device, technique="pipeline", fix=FIX)

    # ── training ────────────────────────────────────────────────────────────────────────────────────────────────────

    def forward_backward(self, window: Window, batch: Any, samples: int, last: bool) -> Tensor:
        """NaN until the window's last microbatch is here: stages begin when all are."""
        window.microbatches.append((batch, samples))
        if not last:
            return torch.full((), torch.nan, device=self._device)
        total, count, samples = self._run(window.microbatches, window.objective)
        sums = self._sum_over_stages(torch.stack((total, count)))
        if self.grid.data.many and self._sharded_stages is None:
            self._average_over_data()
        return window.add(sums[0], sums[1], samples)

    def _run(self, microbatches: Microbatches, objective: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, int]:
        """Forward and backward of all microbatches: this rank's total and count, float64, and the samples.

        objective: what the backward pass begins at, of a total. Raises JobError where microbatches of a window differ
        in their shapes, and what the loss raises.
        """
        self._microbatches, self._scaled = microbatches, objective
        self._sums = torch.zeros(2, dtype=torch.float64, device=self._device)
        activations = self._schedules.activations_of(microbatches[0][0], self._find_activation)
        with self._streams.of_step():
            self._schedules.run(microbatches, activations)
        return self._sums[0], self._sums[1], sum(samples for _, samples in microbatches)

    def _objective(self, stage: int, received: Tensor | None, number: int) -> Tensor:
        """What a stage's backward pass begins at: its activation, or the loss, of shape [1]."""
        batch, samples = self._microbatches[number]
        with self._streams.of_microbatch(number):
            found = self._compute(stage, received, lambda: self._call(batch))
        if stage < self._stages.last:
            return found
        total, count = self._workload.weighed(found, samples)
        self._sums += torch.stack([total.detach().double(), torch.as_tensor(count).to(total.device).double()])
        return torch.stack([self._scaled(total)]).float()  # as the schedule expects

    def _compute(self, stage: int, received: Tensor | None, call: Callable[[], Any]) -> Any:
        """What the stage sends on; of the last stage, what the loss returned."""
        with nullcontext() if stage == self._stages.own[-1] else self._unchanged_buffers():

            def through() -> Any:
                return self._forward.run(self._stages.spans[stage], received, call)

            if self._sharded_stages is None:
                return through()
            return (
                self._sharded_stages(through) if torch.is_grad_enabled() else self._sharded_stages.forward_only(through)
            )

    @contextmanager
    def _unchanged_buffers(self) -> Iterator[None]:
        """Inside, buffers around the blocks do not change: a later stage of this rank updates them as well."""
        buffers = [each for module in self._around for each in module.buffers(recurse=False)]
        before = [each.clone() for each in buffers]
        try:
            yield
        finally:
            for buffer, value in zip(buffers, before, strict=True):
                buffer.data.copy_(value)  # through .data: the backward pass may have saved the buffer

    def _sum_over_stages(self, numbers: Tensor) -> Tensor:
        """Sum the gradients of parameters that all stages hold, in place; and numbers, float64."""
        return sum_gradients(self._common, self.grid.stages, numbers)

    def _average_over_data(self) -> None:
        sum_gradients(self._trained, self.grid.data, torch.zeros(0, dtype=torch.float64, device=self._device))
        for parameter in self._trained:
            if parameter.grad is not None:
                parameter.grad.div_(self.grid.data.size)

    def _call(self, batch: Any) -> Any:
        return self._workload.call(self._loss, self._model, batch)

    # ── evaluation ──────────────────────────────────────────────────────────────────────────────────────────────────

    def forward(self, call: Callable[[Any], Any], batch: Any) -> Any:
        stages, group = self._stages, self.grid.stages.group
        activations = self._schedules.activations_of(batch, self._find_activation)
        with self._streams.of_step(), torch.no_grad():
            for stage in stages.own:
                received = None
                if stage:
                    received = activations[stage - 1].empty(self._device)
                    dist.recv(received, group=group, group_src=stages.rank_of(stage - 1))
                with self._streams.of_microbatch(0):
                    found = self._compute(stage, received, lambda: call(batch))
                if stage == stages.last:
                    return found
                activations[stage].check(found)
                dist.send(found.contiguous(), group=group, group_dst=stages.rank_of(stage + 1))
        return None

    def agree(self, compute: Callable[[], Value]) -> Value:
        computes_loss = self._stages.last in self._stages.own
        return first_of_all(compute, self.grid, self._device, here=computes_loss)

    def _find_activation(self, stage: int, received: Tensor | None, batch: Any) -> Tensor:
        """What the stage sends on for zeros of the right shape; nothing else changes."""
        with self._workload.untouched(self._model), torch.no_grad():
            return self._compute(stage, received, lambda: self._call(batch))
