"""A copy of a state in the host's memory, so that it can be written while the training goes on.

The buffers are kept from one checkpoint to the next: memory that is new to a process costs several times the copy.
Where the machine lacks the memory for a copy, there is none, and the training waits until all is written.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hasten.facts.machine import free_memory
from hasten.training.state.tensor_forms import have_same_form

_SPARE = 1.25  # of the copy's size, that must be free: what else the training needs is not known


class Snapshots:
    """of() gives the copy, which holds until of() is called again."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def of(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
        """The tensors by name, on the host; None where there is no room for them."""
        if not self._fits(tensors):
            self._buffers = {}
            return None
        self._buffers = {name: self._buffer(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._buffers[name].copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return dict(self._buffers)

    def _fits(self, tensors: Mapping[str, Tensor]) -> bool:
        new = sum(tensor.nbytes for name, tensor in tensors.items() if not self._has(name, tensor))
        return new == 0 or new * _SPARE < free_memory()

    def _has(self, name: str, tensor: Tensor) -> bool:
        kept = self._buffers.get(name)
        return kept is not None and have_same_form(kept, tensor)

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        if self._has(name, tensor):
            return self._buffers[name]
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")


def on_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Those that lie elsewhere copied, the others themselves: to be written before anything moves them."""
    return {name: tensor.to("cpu") for name, tensor in tensors.items()}
