"""Ranks that hold a model one behind the other: each its own blocks, and all of them what lies around the blocks.

Built on torch's pipelining, which says who computes what when, and sends activations on and their gradients back. What
a stage computes is the user's own loss on the microbatch, cut by Passing. What lies around the blocks has gradients on
each stage that used it, an embedding that is the head as well on the first and the last; their sum is what one process
would have.

Over replicas of a pipeline gradients are summed once, behind the last microbatch. torch's DistributedDataParallel would
begin while backward passes still run, but looks for what they reach behind a forward pass that returns a loss, and here
an exception ends most of them.

Source: https://docs.pytorch.org/docs/stable/distributed.pipelining.html; 1F1B: PipeDream-Flush, Narayanan et al. 2021,
arXiv:2006.09503; interleaved: arXiv:2104.04473.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from itertools import pairwise
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
    ScheduleLoopedBFS,
)
from torch.utils._pytree import tree_leaves

from hasten.errors import HastenError, JobError
from hasten.facts.ranks import Ranks
from hasten.parallel.left_early import LeftEarly
from hasten.parallel.pipeline.partial_forward import Passing
from hasten.parallel.pipeline.sharded_stages import StagesInParts
from hasten.parallel.pipeline.stage_sharding import Owners
from hasten.parallel.replicate.replicated import gather_over_ranks
from hasten.parallel.sums import add_up

_WRITTEN = "modified by an inplace operation"  # torch's words
_KEPT_SCHEDULES = 4  # each has buffers for all of its microbatches


class Activation(NamedTuple):
    """What passes between two stages."""

    shape: tuple[int, ...]
    dtype: torch.dtype

    def empty(self, device: torch.device) -> Tensor:
        return torch.empty(self.shape, dtype=self.dtype, device=device)


class Parts(NamedTuple):
    """Of a model, one behind the other.

    spans: of blocks, for each stage. begins: the names of their first blocks, but for the first stage. ranks: that hold
    them; stage s is on rank s modulo their number.
    """

    passing: Passing
    spans: Sequence[range]
    begins: Sequence[str]
    ranks: Ranks

    @property
    def own(self) -> list[int]:
        return [stage for stage in range(len(self.spans)) if self.owner(stage) == self.ranks.rank]

    def owner(self, stage: int) -> int:
        return stage % self.ranks.size

    @property
    def has_last(self) -> bool:
        return self.owner(len(self.spans) - 1) == self.ranks.rank


def spans_of(before: Sequence[int], blocks: int) -> list[range]:
    """before: positions of the blocks that begin a stage, but for the first."""
    return [range(start, stop) for start, stop in pairwise([0, *before, blocks])]


class Streams(Protocol):
    """What each microbatch of a step draws at random, alike on every stage."""

    def of_step(self) -> AbstractContextManager[None]: ...

    def of_microbatch(self, number: int) -> AbstractContextManager[None]: ...


class Pipeline:
    """add() for each microbatch of a window, run() once; forward_only() for an evaluation's batch. All ranks that hold
    the model call them alike, on the same samples.

    call: (microbatch) -> what the loss returned, under the run's autocast. weighed: (that, samples) -> its total and
    count. untouched: inside, nothing that is drawn or counted stays. left_early: what is put back where a stage ends.
    streams: what each microbatch draws.
    """

    def __init__(
        self,
        model: nn.Module,
        parts: Parts,
        owners: Owners,
        data: Ranks,
        device: torch.device,
        *,
        runs_through: bool,
        call: Callable[[Any], Any],
        weighed: Callable[[Any, int], tuple[Tensor, Any]],
        untouched: Callable[[], AbstractContextManager[None]],
        left_early: LeftEarly,
        streams: Streams,
    ) -> None:
        """runs_through: all forward passes of a window come before its backward passes."""
        self.owners, self.parts, self._data, self._device = owners, parts, data, device
        self._streams = streams
        self._call, self._weighed, self._runs_through = call, weighed, runs_through
        self._untouched, self.left_early = untouched, left_early
        self._model = model
        self.in_parts: StagesInParts | None = None
        in_blocks = {module for block in parts.passing.blocks for module in block.modules()}
        self._around = [each for each in model.modules() if each not in in_blocks]
        self._find_parameters()
        self._schedules: dict[Any, Any] = {}
        self._activations: dict[Any, list[Activation]] = {}
        self.forget()

    def hold_in_parts(self, held: StagesInParts) -> None:
        """From now on: replicas of this rank each hold a part of what it holds, and sum its gradients."""
        self.in_parts = held
        self._find_parameters()

    def _find_parameters(self) -> None:
        owners = self.owners
        named = [
            (name, each) for name, each in self._model.named_parameters() if each.requires_grad and owners.has(name)
        ]
        self._shared = [each for name, each in named if name not in owners.owners]
        self._trained = [each for _, each in named]

    def forget(self) -> None:
        """The next microbatch is the first of a window."""
        self._microbatches = list[tuple[Any, int]]()

    def add(self, batch: Any, samples: int) -> None:
        self._microbatches.append((batch, samples))

    def run(self, scaled: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, int]:
        """Forward and backward of all microbatches. Their total, float64, their count, float64, and their samples; what
        a rank holds has the gradients of the scaled total then, averaged over the replicas.

        Raises JobError where microbatches of a window differ in their shapes, and what the loss raises.
        """
        microbatches, number = self._microbatches, torch.arange(len(self._microbatches))
        self._sums, self._scaled = torch.zeros(2, dtype=torch.float64, device=self._device), scaled
        schedule, stages = self._schedule(microbatches)
        first: tuple[Any, ...] = (number,) if 0 in self.parts.own else ()
        raised: Exception | None = None
        try:
            # A stage is told which microbatch it computes by its number, as a batch may be any object.
            with self._streams.of_step():
                schedule.step(*first, target=number, number=number)
        except RuntimeError as error:
            by_loss = (stage.raised for stage in stages if stage.raised is not None)
            raised = next(by_loss, None) or _cause(error, len(microbatches))
            if raised is None:
                raise
        finally:
            self.forget()
        if raised is not None:  # torch wraps it into one of its own
            raise raised
        total, count = self._reduced()
        return total, count, sum(samples for _, samples in microbatches)

    def forward_only(self, batch: Any) -> Any:
        """What the loss returned, on the rank of the last stage; None on others."""
        parts, ranks, device = self.parts, self.parts.ranks, self._device
        activations = self._activations_of(batch)
        with self._streams.of_step():
            for stage in parts.own:
                received = None
                if stage:
                    received = activations[stage - 1].empty(device)
                    dist.recv(received, group=ranks.group, group_src=parts.owner(stage - 1))
                with self._streams.of_microbatch(0):
                    found = self.compute(stage, received, batch)
                if stage == len(parts.spans) - 1:
                    return found
                self._check(found, activations[stage])
                dist.send(found.contiguous(), group=ranks.group, group_dst=parts.owner(stage + 1))
        return None

    def unreached(self, names: Sequence[str]) -> list[str]:
        """Parameters that no stage has a gradient of. names: those that this rank has none of."""
        own = [name for name in names if self.owners.has(name)]
        return [*dict.fromkeys(gather_over_ranks(own, self.parts.ranks, self._device))]

    def from_last(self, sums: Tensor) -> Tensor:
        """The tensor that the rank of the last stage has, on all of them, in place."""
        dist.broadcast(sums, group=self.parts.ranks.group, group_src=self.parts.ranks.size - 1)
        return sums

    def settle(self) -> None:
        """Behind passes that nothing is learned of. Raises JobError, on all ranks of this pipeline, where a stage was
        not as the whole."""
        self.left_early.settle(self.parts.ranks, self._device)

    def told_by_last(self, compute: Callable[[], Any]) -> Any:
        """What the rank of the last stage computes, on all of them; of anything that can be pickled."""
        mine = [compute()] if self.parts.has_last else []
        return gather_over_ranks(mine, self.parts.ranks, self._device)[0]

    def compute(self, stage: int, received: Tensor | None, batch: Any) -> Any:
        """What the stage hands on; of the last, what the loss returned."""
        passing, span = self.parts.passing, self.parts.spans[stage]
        with self._leaving(stage) as at_block:

            def through() -> Any:
                return passing.through(span, received, lambda: self._call(batch), at_block)

            return through() if self.in_parts is None else self.in_parts(through)

    @contextmanager
    def _leaving(self, stage: int) -> Iterator[Callable[[int], None] | None]:
        """Inside, the stage is computed. Gives what is to be called at each block."""
        if stage == len(self.parts.spans) - 1:
            with self.left_early.last_stage() as at_block:
                yield at_block
        elif stage == self.parts.own[-1]:
            with self.left_early.stage():
                yield None
        else:
            with self.left_early.stage_in_turns(), self._buffers_around_stand():
                yield None

    @contextmanager
    def _buffers_around_stand(self) -> Iterator[None]:
        """Inside, none of those moves that lie around the blocks: a later stage of this rank counts it as well."""
        held = [(each._buffers, dict(each._buffers)) for each in self._around]
        values = [(each, each.clone()) for _, buffers in held for each in buffers.values() if each is not None]
        try:
            yield
        finally:
            for buffers, before in held:
                buffers.clear()  # a model may have put others into their places, or have made some
                buffers.update(before)
            for buffer, before in values:
                buffer.data.copy_(before)  # as graphs have kept it, which count what is written to it otherwise

    def objective(self, stage: int, received: Tensor | None, number: int, activation: Activation | None) -> Tensor:
        """What a stage's backward pass begins at: what it hands on, or the total, of shape [1]."""
        batch, samples = self._microbatches[number]
        with self._streams.of_microbatch(number):
            found = self.compute(stage, received, batch)
        if activation is None:
            total, count = self._weighed(found, samples)
            self._sums += torch.stack([total.detach().double(), torch.as_tensor(count).to(total.device).double()])
            return torch.stack([self._scaled(total)]).float()  # as torch was told; a gradient of 1 is one in any format
        self._check(found, activation)
        found = found.contiguous()
        # Where nothing before it is trained: torch still sends a gradient back.
        return found if found.requires_grad else found.detach().requires_grad_()

    def _check(self, found: Tensor, expected: Activation) -> None:
        if (tuple(found.shape), found.dtype) != expected:
            raise JobError(
                "model",
                f"gives {found.dtype} {[*found.shape]} to a block for one microbatch, and "
                f"{expected.dtype} {[*expected.shape]} for another of the same shapes",
                "leave `pipeline` out of the plan",
            )

    def _schedule(self, microbatches: Sequence[tuple[Any, int]]) -> tuple[Any, list[_Stage]]:
        shapes = [_shapes(batch) for batch, _ in microbatches]
        if any(each != shapes[0] for each in shapes):
            raise JobError(
                "train",
                "gives microbatches of one step that differ in their shapes, and a pipeline's buffers do not",
                "pad all samples to one length",
            )
        key = (len(microbatches), shapes[0])
        if key not in self._schedules:
            activations = self._activations_of(microbatches[0][0])
            while len(self._schedules) >= _KEPT_SCHEDULES:
                del self._schedules[next(iter(self._schedules))]
            self._schedules[key] = self._new_schedule(len(microbatches), activations)
        return self._schedules[key]

    def _new_schedule(self, number: int, activations: list[Activation]) -> tuple[Any, list[_Stage]]:
        parts, device, last = self.parts, self._device, len(self.parts.spans) - 1
        modules, stages = list[_Stage](), list[PipelineStage]()
        for stage in parts.own:
            module = _Stage(self, stage, activations[stage] if stage < last else None)
            given = (
                activations[stage - 1].empty(device).requires_grad_() if stage else torch.zeros(1, dtype=torch.int64)
            )
            gives = torch.empty(1, device=device) if stage == last else activations[stage].empty(device)
            modules.append(module)
            # Its examples spare torch a forward pass of its own to find shapes, which would draw and count.
            stages.append(
                PipelineStage(
                    module,
                    stage,
                    last + 1,
                    device,
                    input_args=given,
                    output_args=gives.requires_grad_(),
                    group=parts.ranks.group,
                )
            )
        kind: Any
        if len(stages) > 1:
            rounds = max(1, number // parts.ranks.size)  # torch's interleaved one asks for equally many in each
            kind, given = (ScheduleLoopedBFS if number % rounds else ScheduleInterleaved1F1B), stages
        else:
            runs_through = self._runs_through or number < parts.ranks.size  # torch's 1F1B asks for as many
            kind, given = (ScheduleGPipe if runs_through else Schedule1F1B), stages[0]
        return kind(given, number, loss_fn=_total, scale_grads=False), modules

    def _activations_of(self, batch: Any) -> list[Activation]:
        """What each stage but the last hands on, of a batch of these shapes: found by a forward pass on zeros."""
        key = _shapes(batch)
        if key not in self._activations:
            found = list[Activation]()
            forward_only = torch.no_grad if self.in_parts is None else self.in_parts.forward_only
            with self._untouched(), self.left_early.unheard(), forward_only():
                for stage in range(len(self.parts.spans) - 1):
                    mine = list[Activation]()
                    if stage in self.parts.own:
                        received = found[-1].empty(self._device).zero_() if stage else None
                        given = self.compute(stage, received, batch)
                        mine.append(Activation(tuple(given.shape), given.dtype))
                    found += gather_over_ranks(mine, self.parts.ranks, self._device)
            self._activations[key] = found
        return self._activations[key]

    def _reduced(self) -> tuple[Tensor, Tensor]:
        """The window's total and count. Sums the gradients of what all stages hold, and averages all over replicas."""
        ranks, device = self.parts.ranks, self._device
        sums = add_up(self._shared, ranks, torch.cat([self._sums, self.left_early.doubts(device)]))
        if sums[2]:
            self.left_early.settle(ranks, device)
        if self._data.many and self.in_parts is None:
            add_up(self._trained, self._data, torch.zeros(0, dtype=torch.float64, device=self._device))
            for parameter in self._trained:
                if parameter.grad is not None:
                    parameter.grad.div_(self._data.size)
        return sums[0], sums[1]


class _Stage(nn.Module):
    """What torch calls. raised: by the loss, in the present window."""

    def __init__(self, pipeline: Pipeline, stage: int, activation: Activation | None) -> None:
        super().__init__()
        self._pipeline, self._stage, self._activation = pipeline, stage, activation
        self.raised: Exception | None = None

    def forward(self, given: Tensor, *, number: Tensor) -> Tensor:
        self.raised = None
        try:
            received = given if self._stage else None
            return self._pipeline.objective(self._stage, received, int(number), self._activation)
        except Exception as error:
            self.raised = error
            raise


def _total(objective: Tensor, number: Tensor) -> Tensor:
    return objective.sum()


def _cause(error: BaseException, microbatches: int) -> HastenError | None:
    """What one of torch's errors came from, where that is one of ours, or one that a pipeline meets before others."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, HastenError):
        if microbatches > 1 and _WRITTEN in str(cause):
            told = " ".join(str(cause).split())
            return JobError(
                "model",
                "writes to a tensor that the gradients of this or an earlier microbatch need, and a pipeline begins "
                f"several before it differentiates one: {told}",
                "let it make a new tensor in place of writing to one; or, if one process trains it, leave `pipeline` "
                "out of the plan",
            )
        cause = cause.__cause__ or cause.__context__
    return cause


def _shapes(batch: Any) -> Any:
    return tuple((tuple(each.shape), each.dtype) if isinstance(each, Tensor) else None for each in tree_leaves(batch))
