"""Run a model, or one of its blocks, and restore its state: for a measurement, or for the second forward of a
recomputed block."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

import torch
from torch import Tensor, nn

from hasten.techniques.common.torch_internals import version_of

BuffersBefore = dict[tuple[nn.Module, str], Tensor]


@contextmanager
def same_state(model: nn.Module) -> Iterator[None]:
    """Restore the values of the model's buffers and the train or eval flags of its modules at the end.

    Other attributes of a module, for example a counter in plain Python, are not restored.
    """
    training = [(module, module.training) for module in model.modules()]
    buffers = [(owner, name, buffer, buffer.detach().clone()) for owner, name, buffer in owned_buffers(model)]
    try:
        yield
    finally:
        for module, flag in training:
            module.training = flag
        with torch.no_grad():
            for owner, name, buffer, value in buffers:
                setattr(owner, name, buffer.copy_(value))


def owned_buffers(model: nn.Module) -> list[tuple[nn.Module, str, Tensor]]:
    """Every buffer with the module that owns it and its name there."""
    return [
        (module, name, buffer) for module in model.modules() for name, buffer in module.named_buffers(recurse=False)
    ]


@contextmanager
def first_forward(block: nn.Module, before: BuffersBefore) -> Iterator[None]:
    """Record in `before` the values of the buffers that the forward writes: the second forward must start from them.

    torch does not count the writes of a batch norm to its running statistics, so these are not recorded. Nothing
    depends on them: in training a batch norm reads the batch only.
    """
    buffers = [
        (owner, name, buffer, version_of(buffer), buffer.clone()) for owner, name, buffer in owned_buffers(block)
    ]
    yield
    for owner, name, buffer, version, value in buffers:
        if getattr(owner, name) is not buffer or version_of(buffer) != version:
            before[owner, name] = value


class LaterForwards:
    """A context for every further forward, which works on copies of the buffers; entered once for each backward
    pass."""

    def __init__(self, block: nn.Module, before: BuffersBefore) -> None:
        self._block, self._before = block, before

    def __enter__(self) -> None:
        self._originals = owned_buffers(self._block)
        for owner, name, buffer in self._originals:
            setattr(owner, name, self._before.get((owner, name), buffer).clone())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, buffer in self._originals:
            setattr(owner, name, buffer)
