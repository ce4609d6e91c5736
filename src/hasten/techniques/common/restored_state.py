"""Run a model, or one of its blocks, and restore its state: for a measurement, or for the second forward of a
recomputed block."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import torch
from torch import Tensor, nn

from hasten.data.order.randomness import generator_state, is_generator, set_generator_state
from hasten.techniques.common.torch_internals import version_of


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


@dataclass(slots=True)
class StateBefore:
    """The state of a block before its first forward.

    buffers: values of the buffers that the forward wrote. generators: random generators that the block's modules hold,
    with their states.
    """

    buffers: dict[tuple[nn.Module, str], Tensor] = field(default_factory=dict[tuple[nn.Module, str], Tensor])
    generators: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])


@contextmanager
def first_forward(block: nn.Module, state: StateBefore) -> Iterator[None]:
    """Record in `state` what the second forward must start from.

    torch does not count the writes of a batch norm to its running statistics, so these are not recorded. Nothing
    depends on them: in training a batch norm reads the batch only.
    """
    state.generators = [(each, generator_state(each)) for each in _generators(block)]
    before = [(owner, name, buffer, version_of(buffer), buffer.clone()) for owner, name, buffer in owned_buffers(block)]
    yield
    for owner, name, buffer, version, value in before:
        if getattr(owner, name) is not buffer or version_of(buffer) != version:
            state.buffers[owner, name] = value


class LaterForwards:
    """A context for every further forward, which works on copies of the buffers; entered once for each backward
    pass."""

    def __init__(self, block: nn.Module, state: StateBefore) -> None:
        self._block, self._state = block, state

    def __enter__(self) -> None:
        self._originals = owned_buffers(self._block)
        self._generators = [(each, generator_state(each)) for each, _ in self._state.generators]
        for owner, name, buffer in self._originals:
            setattr(owner, name, self._state.buffers.get((owner, name), buffer).clone())
        for each, state in self._state.generators:
            set_generator_state(each, state)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, buffer in self._originals:
            setattr(owner, name, buffer)
        for each, state in self._generators:
            set_generator_state(each, state)


def _generators(block: nn.Module) -> list[Any]:
    values = (value for module in block.modules() for value in vars(module).values())
    return [each for value in values for each in _members(value) if is_generator(each)]


def _members(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return value
    return value.values() if type(value) is dict else (value,)
