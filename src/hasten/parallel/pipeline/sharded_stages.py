"""The stages of a pipeline that one rank computes, over parameters of which it holds parts.

As with a whole model, torch's fully_shard puts its hooks around what computes. Here that is one microbatch's way
through a stage, up to what the stage hands on: what carries that out of the loss passes through blocks of other ranks
alone, and those have no hooks. A stage's own blocks are gathered one by one, in each microbatch; what lies around them,
for all of its way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, distribute_tensor
from torch.optim import Optimizer

from hasten.facts.job import Loss
from hasten.parallel.loss_of_model import Unseen
from hasten.parallel.options import ShardOptions
from hasten.parallel.shard.sharded import in_parts, without_backward
from hasten.parallel.through_layers import through_layers
from hasten.parallel.whole import part_of


class StagesInParts:
    """Call it with what computes a stage. Parameters become parts here, in place, also those that optimizers hold."""

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        others: Sequence[nn.Parameter],
        optimizers: Sequence[Optimizer],
        mesh: DeviceMesh,
        options: ShardOptions,
    ) -> None:
        """blocks: of this rank's stages. others: parameters of which other ranks of the pipeline have the values."""
        before = dict(model.named_parameters())
        self._root = _Computing(model)
        self._parts = in_parts(self._root, blocks, mesh, options, ignored=others)
        self._parts.begin()
        self._mark(model, {each: _nothing(each, mesh) for each in others})
        now = dict(model.named_parameters())
        hand_over(optimizers, {parameter: now[name] for name, parameter in before.items()})

    @staticmethod
    def _mark(model: nn.Module, nothing: dict[nn.Parameter, nn.Parameter]) -> None:
        """An optimizer moves no list of parts and of others, even where these have no gradient."""
        for module in model.modules():
            for name, parameter in [*module._parameters.items()]:
                if parameter is not None and parameter in nothing:
                    module.register_parameter(name, nothing[parameter])

    def __call__(self, compute: Callable[[], Any]) -> Any:
        return through_layers(self._root, compute, self._parts.is_root_freed)

    def forward_only(self) -> AbstractContextManager[None]:
        """Inside, no backward pass follows."""
        return without_backward(self._root)


class _Computing(nn.Module):
    """(what computes a stage) -> what its backward pass begins at, and what else the loss returned, unseen."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, compute: Callable[[], Any]) -> tuple[Any, Unseen]:
        returned = compute()
        return returned.total if isinstance(returned, Loss) else returned, Unseen(returned)


def _nothing(parameter: nn.Parameter, mesh: DeviceMesh) -> nn.Parameter:
    held = distribute_tensor(parameter.detach(), mesh, [Replicate()], src_data_rank=None)
    return nn.Parameter(held, parameter.requires_grad)


def hand_over(optimizers: Sequence[Optimizer], new: dict[nn.Parameter, nn.Parameter]) -> None:
    """Let optimizers move these in the place of those that they were made with, with their state in parts too."""
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["params"][:] = [new.get(each, each) for each in group["params"]]  # a list that an optimizer may keep
        for parameter, own in new.items():
            if values := optimizer.state.pop(parameter, None):
                optimizer.state[own] = {key: _held_as(parameter, own, value) for key, value in values.items()}


def _held_as(before: Tensor, now: Tensor, value: Any) -> Any:
    alike = isinstance(value, Tensor) and value.dim() and value.shape == before.shape
    return part_of(value, now) if alike else value
