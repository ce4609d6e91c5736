"""The stages of a pipeline that one rank computes, with parameters as parts over the data ranks (fully_shard).

fully_shard puts its hooks around a module's forward. Here that module is one microbatch's way through a stage, up to
the stage's last block: the exception that ends a stage passes only through blocks of other ranks, which have no hooks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import Replicate, distribute_tensor

from hasten.parallel.loss_module import LossModule
from hasten.parallel.options import ShardOptions
from hasten.parallel.shard.sharded import call_root, forward_only, shard_module


class ShardedStages:
    """Call it with a function that computes a stage. Parameters become DTensors here, in place.

    blocks: of this rank's stages. others: parameters that other ranks of the pipeline hold.
    """

    def __init__(
        self,
        model: nn.Module,
        blocks: Sequence[nn.Module],
        others: Sequence[nn.Parameter],
        mesh: DeviceMesh,
        options: ShardOptions,
    ) -> None:
        self._root = LossModule(lambda model, compute: compute(), model)
        shard_module(self._root, blocks, mesh, options, ignored=others)
        whole = {each: distribute_tensor(each.detach(), mesh, [Replicate()], src_data_rank=None) for each in others}
        replaced = {each: nn.Parameter(held, each.requires_grad) for each, held in whole.items()}
        # An optimizer does not take DTensors and plain tensors in one list, even where some have no gradient.
        for module in model.modules():
            for name, parameter in [*module.named_parameters(recurse=False, remove_duplicate=False)]:
                if parameter in replaced:
                    module.register_parameter(name, replaced[parameter])

    def __call__(self, compute: Callable[[], Any]) -> Any:
        return call_root(self._root, compute)

    def forward_only(self, compute: Callable[[], Any]) -> Any:
        return forward_only(self._root, lambda: self(compute))
