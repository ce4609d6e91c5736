"""A copy of a state in the host's memory, so that it can be written while training continues.

The buffers are reused for the next checkpoint: memory that is new to a process costs several times the copy.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hasten.facts.machine import free_memory
from hasten.training.state.torch_tensors import have_same_form

_SPARE = 1.25  # times the copy's size must be free: what else training will need is not known


class Snapshots:
    """of() returns the copy, which is valid until of() is called again."""

    def __init__(self) -> None:
        self._buffers: dict[str, Tensor] = {}

    def of(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], bool]:
        """The tensors by name, on the host, and whether they are a copy.

        Where the machine lacks memory for one, tensors that are on the host already are returned themselves: training
        must not change them before they are written.
        """
        if not self._fits(tensors):
            self._buffers = {}
            return {name: tensor.to("cpu") for name, tensor in tensors.items()}, False
        self._buffers = {name: self._buffer(name, tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._buffers[name].copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return dict(self._buffers), True

    def _fits(self, tensors: Mapping[str, Tensor]) -> bool:
        new = sum(tensor.nbytes for name, tensor in tensors.items() if not self._has(name, tensor))
        return new == 0 or new * _SPARE < free_memory()

    def _has(self, name: str, tensor: Tensor) -> bool:
        buffer = self._buffers.get(name)
        return buffer is not None and have_same_form(buffer, tensor)

    def _buffer(self, name: str, tensor: Tensor) -> Tensor:
        if self._has(name, tensor):
            return self._buffers[name]
        return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
