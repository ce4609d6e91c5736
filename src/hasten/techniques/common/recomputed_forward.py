"""Run a block's forward again as if for the first time: what it draws from generators of its own is the same, its
buffers are as they were found, and none is written twice."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

from torch import Tensor, nn

from hasten.data.order.generator_states import is_generator, set_state, state_of
from hasten.techniques.common.restored_state import owned_buffers


@dataclass(slots=True)
class Found:
    """At the first forward. buffers: of those that it writes, the values before. drawn: generators that the block's
    modules hold, with their states before."""

    buffers: dict[tuple[nn.Module, str], Tensor] = field(default_factory=dict[tuple[nn.Module, str], Tensor])
    drawn: list[tuple[Any, Any]] = field(default_factory=list[tuple[Any, Any]])


@contextmanager
def first_forward(block: nn.Module, found: Found) -> Iterator[None]:
    """Note in `found` what a later forward begins with.

    torch counts no version when a batch norm writes its statistics, so these are not noted. Nothing depends on it: in
    training a batch norm reads the batch only.
    """
    found.drawn = [(each, state_of(each)) for each in _generators(block)]
    before = [(owner, name, buffer, buffer._version, buffer.clone()) for owner, name, buffer in owned_buffers(block)]
    yield
    for owner, name, buffer, version, value in before:
        if getattr(owner, name) is not buffer or buffer._version != version:
            found.buffers[owner, name] = value


class LaterForwards:
    """A context for every further forward, entered as often as the graph is run backward: it works on copies."""

    def __init__(self, block: nn.Module, found: Found) -> None:
        self._block, self._found = block, found

    def __enter__(self) -> None:
        self._originals = owned_buffers(self._block)
        self._drawn = [(each, state_of(each)) for each, _ in self._found.drawn]
        for owner, name, buffer in self._originals:
            setattr(owner, name, self._found.buffers.get((owner, name), buffer).clone())
        for each, state in self._found.drawn:
            set_state(each, state)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, buffer in self._originals:
            setattr(owner, name, buffer)
        for each, state in self._drawn:
            set_state(each, state)


def _generators(block: nn.Module) -> list[Any]:
    held = (each for module in block.modules() for each in vars(module).values())
    return [each for value in held for each in _within(value) if is_generator(each)]


def _within(value: Any) -> Iterable[Any]:
    if isinstance(value, list | tuple):
        return value
    return value.values() if type(value) is dict else (value,)
