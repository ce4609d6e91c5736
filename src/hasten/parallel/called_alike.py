"""Ranks gather a layer together, so all have to call the same layers in the same order; or it is refused.

Where one rank calls one expert and the next another one of the same size, each would compute with weights that are put
together from both, and nobody could tell. So they say which layer comes next, before it is gathered. That costs an
exchange in each call, so it is done in some passes alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor

from hasten.errors import JobError
from hasten.parallel.passes import Passes


class CalledAlike:
    """Raises JobError, on all ranks, where they are about to call different layers in a pass of the root."""

    def __init__(self, root: nn.Module, layers: Mapping[str, nn.Module], mesh: DeviceMesh, passes: Passes) -> None:
        """Made behind torch's own hooks on the layers, which gather: so these come before them. layers: by name."""
        self._group = mesh.get_group()
        self._device = next(root.parameters()).device  # which need not be the current one of its kind
        self._passes, self._names = passes, [*layers]
        self._numbers = {layer: number for number, layer in enumerate(layers.values())}
        for layer in layers.values():
            layer.register_forward_pre_hook(self._before, prepend=True)
        # At the front: behind it, the pass is over.
        root.register_forward_hook(self._at_the_end, prepend=True)

    def _before(self, layer: nn.Module, _: Any) -> None:
        if torch.is_grad_enabled() or not _is_gathered(layer):
            self._tell(self._numbers[layer])

    def _at_the_end(self, *_: Any) -> None:
        self._tell(len(self._names))

    def _tell(self, own: int) -> None:
        if not (self._passes.under_way and self._passes.looked_at):
            return
        told = torch.tensor([own, -own], device=self._device)
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
        last, first = told.tolist()
        if last != -first:
            other = self._names[last] if last < len(self._names) else "no layer more"
            raise JobError(
                "model",
                f"calls {self._names[-first]} on one process where another calls {other}, and in parts a layer is "
                "gathered by all of them together",
                "leave `shard` out of the plan, or let all processes call the same layers, if need be with no samples",
            )


def _is_gathered(layer: nn.Module) -> bool:
    return not isinstance(next(layer.parameters()), DTensor)
