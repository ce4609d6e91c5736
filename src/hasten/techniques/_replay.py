"""Run a block's forward again as if for the first time: its buffers as they were found, and none written twice."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import TracebackType

from torch import Tensor, nn

from hasten.techniques._restore import owned_buffers

Found = dict[tuple[nn.Module, str], Tensor]


@contextmanager
def first_forward(block: nn.Module, found: Found) -> Iterator[None]:
    """Note in `found`, for each buffer that is written meanwhile, the value it had before.

    torch counts no version when a batch norm writes its statistics, so these are not noted. Nothing depends on it: in
    training a batch norm reads the batch only.
    """
    before = [(owner, name, buffer, buffer._version, buffer.clone()) for owner, name, buffer in owned_buffers(block)]
    yield
    for owner, name, buffer, version, value in before:
        if getattr(owner, name) is not buffer or buffer._version != version:
            found[owner, name] = value


class LaterForwards:
    """A context for every further forward, entered as often as the graph is run backward: it works on copies."""

    def __init__(self, block: nn.Module, found: Found) -> None:
        self._block, self._found = block, found

    def __enter__(self) -> None:
        self._originals = owned_buffers(self._block)
        for owner, name, buffer in self._originals:
            setattr(owner, name, self._found.get((owner, name), buffer).clone())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for owner, name, buffer in self._originals:
            setattr(owner, name, buffer)
