"""torch's pipeline schedules over the stages of this rank, one for each number and shape of microbatches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)

from hasten.errors import JobError
from hasten.parallel.collectives import gather_over_ranks
from hasten.parallel.options import Schedule
from hasten.parallel.pipeline.stages import Stages
from hasten.parallel.torch_private import tree_leaves

_MOST = 4  # schedules at a time: each has buffers for all of its microbatches

Objective = Callable[[int, "Tensor | None", int], Tensor]
"""(stage, what it has received, number of the microbatch) -> what its backward pass begins at."""


class Activation(NamedTuple):
    """What one stage sends to the next."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)

    def check(self, found: Tensor) -> None:
        """Raises JobError for another shape or dtype: the receiving rank has allocated this one."""
        if (tuple(found.shape), found.dtype) != self:
            raise JobError(
                "model",
                f"gives {found.dtype} {[*found.shape]} to a block for one microbatch, and {self.dtype} {[*self.shape]} "
                "for another of the same shapes",
                "remove `pipeline` from the plan",
            )


class Schedules:
    def __init__(self, stages: Stages, kind: Schedule, objective: Objective, device: torch.device) -> None:
        self._stages, self._kind, self._objective, self._device = stages, kind, objective, device
        self._built: dict[Any, tuple[Any, list[_Stage]]] = {}
        self._activations: dict[Any, list[Activation]] = {}

    def run(self, microbatches: Sequence[tuple[Any, int]], activations: list[Activation]) -> None:
        """Forward and backward of all microbatches. Raises JobError where they differ in their shapes, and what the
        loss raises."""
        shapes = [shapes_of(batch) for batch, _ in microbatches]
        if any(each != shapes[0] for each in shapes):
            raise JobError(
                "train",
                "gives microbatches of different shapes in one step, but a pipeline's buffers have one shape",
                "pad all samples to one length",
            )
        key = len(microbatches), shapes[0]
        if key not in self._built:
            while len(self._built) >= _MOST:
                del self._built[next(iter(self._built))]
            self._built[key] = self._build(len(microbatches), activations)
        schedule, modules = self._built[key]
        # A stage is given the number of its microbatch, because a batch may be any object.
        number = torch.arange(len(microbatches))
        first: tuple[Any, ...] = (number,) if 0 in self._stages.own else ()
        try:
            schedule.step(*first, target=number, number=number)
        except RuntimeError as error:
            raised = next((each.raised for each in modules if each.raised is not None), None)
            if raised is None:
                raise
            raise raised from error  # torch wraps what a stage raises

    def activations_of(self, batch: Any, compute: Callable[[int, Tensor | None, Any], Tensor]) -> list[Activation]:
        """What each stage but the last sends on for a batch of these shapes: found once, by a forward pass on zeros.

        compute: (stage, received, batch) -> what it sends on. All ranks of the pipeline call it.
        """
        key = shapes_of(batch)
        if key not in self._activations:
            found = list[Activation]()
            for stage in range(self._stages.last):
                mine = list[Activation]()
                if stage in self._stages.own:
                    sent = compute(stage, found[-1].empty(self._device).zero_() if stage else None, batch)
                    mine.append(Activation(tuple(sent.shape), sent.dtype))
                found += gather_over_ranks(mine, self._stages.ranks, self._device)
            self._activations[key] = found
        return self._activations[key]

    def _build(self, number: int, activations: list[Activation]) -> tuple[Any, list[_Stage]]:
        stages, last = self._stages, self._stages.last
        modules, built = list[_Stage](), list[PipelineStage]()
        for stage in stages.own:
            module = _Stage(self._objective, stage, activations[stage] if stage < last else None)
            received = torch.zeros(1, dtype=torch.int64)
            if stage:
                received = activations[stage - 1].empty(self._device).requires_grad_()
            sent = torch.empty(1, device=self._device) if stage == last else activations[stage].empty(self._device)
            modules.append(module)
            built.append(
                PipelineStage(
                    module,
                    stage,
                    last + 1,
                    self._device,
                    input_args=received,  # examples spare torch a forward pass of its own to find shapes
                    output_args=sent.requires_grad_(),
                    group=stages.ranks.group,
                )
            )
        kind = self._class_for(number, len(built))
        given: Any = built if len(built) > 1 else built[0]
        return kind(given, number, loss_fn=lambda found, number: found.sum(), scale_grads=False), modules

    def _class_for(self, number: int, stages: int) -> Any:
        if stages > 1:  # of this rank; torch's interleaved schedule needs equally many microbatches in each round
            rounds = max(1, number // self._stages.ranks.size)
            return ScheduleLoopedBFS if number % rounds else ScheduleInterleaved1F1B
        # torch's 1F1B needs as many microbatches as stages
        return ScheduleGPipe if self._kind == "gpipe" or number < self._stages.ranks.size else Schedule1F1B


class _Stage(nn.Module):
    """What torch calls. raised: by the loss, in the present window."""

    def __init__(self, objective: Objective, stage: int, activation: Activation | None) -> None:
        super().__init__()
        self._objective, self._stage, self._activation = objective, stage, activation
        self.raised: Exception | None = None

    def forward(self, given: Tensor, *, number: Tensor) -> Tensor:
        self.raised = None
        try:
            found = self._objective(self._stage, given if self._stage else None, int(number))
            if self._activation is None:
                return found
            self._activation.check(found)
            found = found.contiguous()
            # Where nothing before it is trained, torch still sends a gradient back.
            return found if found.requires_grad else found.detach().requires_grad_()
        except Exception as error:
            self.raised = error
            raise


def shapes_of(batch: Any) -> Any:
    """Shapes and dtypes of the tensors in a batch, hashable."""
    return tuple((tuple(each.shape), each.dtype) if isinstance(each, Tensor) else None for each in tree_leaves(batch))
