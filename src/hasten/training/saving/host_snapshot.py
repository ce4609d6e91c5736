"""A copy of a state in the host's memory, so that it can be written while training continues. Its buffers are
reused."""

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
        kept = {name: buffer for name, buffer in self._buffers.items() if _fits(buffer, tensors.get(name))}
        new_bytes = sum(tensor.nbytes for name, tensor in tensors.items() if name not in kept)
        if new_bytes and new_bytes * _SPARE >= free_memory():
            self._buffers = {}
            return {name: tensor.to("cpu") for name, tensor in tensors.items()}, False
        self._buffers = {name: kept[name] if name in kept else _buffer(tensor) for name, tensor in tensors.items()}
        for name, tensor in tensors.items():
            self._buffers[name].copy_(tensor, non_blocking=True)
        for device in {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}:
            torch.cuda.synchronize(device)
        return dict(self._buffers), True


def _fits(buffer: Tensor, tensor: Tensor | None) -> bool:
    return tensor is not None and have_same_form(buffer, tensor)


def _buffer(tensor: Tensor) -> Tensor:
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.device.type == "cuda")
