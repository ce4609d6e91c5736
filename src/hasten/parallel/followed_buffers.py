"""Buffers that a loss alone holds, a centre for instance, are in each step as the first rank has them.

Those of the model are so by torch. A buffer has to have the same shape on all ranks: a bank that grows by a rank's own
samples, or a mask that is made for as many as there are, is refused, for it would be filled with anything. That takes a
small exchange in each call, as none can know by itself whether another one's shapes are others now.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from hasten.errors import JobError
from hasten.facts.ranks import Ranks, wait_seconds
from hasten.parallel.replicate.replicated import follow_the_leader

_SHOWN = 3


class FollowedBuffers:
    """A loss function that first takes its buffers from the first rank, where it is called to train.

    All ranks make it together, and call it equally often. kind: of device, that a process group sends from.
    """

    def __init__(
        self, loss: Callable[[nn.Module, Any], Any], modules: Sequence[nn.Module], ranks: Ranks, kind: str
    ) -> None:
        self._loss, self._modules, self._ranks, self._kind = loss, modules, ranks, kind
        # Shapes are known on the host: to ask a device for them would wait for it in each step.
        self._group: Any = dist.new_group(backend="gloo", timeout=timedelta(seconds=wait_seconds()))
        self._known, self._number = list[Any](), 0

    def __call__(self, model: nn.Module, batch: Any) -> Any:
        if torch.is_grad_enabled():
            held = [*self._held()]
            self._check([(each.shape, each.dtype, name) for name, each in held])
            with torch.no_grad():
                follow_the_leader([each for _, each in held], self._ranks)
        return self._loss(model, batch)

    def _held(self) -> Iterator[tuple[str, Tensor]]:
        for module in self._modules:
            for name, each in module._buffers.items():
                # A sparse one cannot be sent as it is.
                if each is not None and each.device.type == self._kind and each.layout == torch.strided:
                    yield f"{type(module).__name__}.{name}", each

    def _check(self, layout: list[Any]) -> None:
        """Raises JobError, on all ranks, where some have other shapes."""
        if layout != self._known:
            self._known, self._number = layout, zlib.crc32(repr(layout).encode())
        told = torch.tensor((self._number, -self._number))
        dist.all_reduce(told, dist.ReduceOp.MAX, group=self._group)
        largest, smallest = told.tolist()
        if largest == -smallest:
            return
        given: list[Any] = [None] * dist.get_world_size(self._group)
        dist.all_gather_object(given, layout, group=self._group)
        shapes = [{name: (tuple(shape), str(dtype)) for shape, dtype, name in each} for each in given]
        apart = [
            name for name in {**shapes[0], **shapes[-1]} if any(e.get(name) != shapes[0].get(name) for e in shapes)
        ]
        names = ", ".join(apart[:_SHOWN]) or "buffers"
        raise JobError(
            "loss",
            f"holds {names}, of another shape on each process, and in each step they are to be those of the first",
            "let buffers have one shape, as with Job.drop_last = True, or keep it in an attribute that is no buffer",
        )
