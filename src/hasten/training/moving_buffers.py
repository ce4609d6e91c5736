"""Which of a model's buffers move, so that those can be copied at the start of each window.

Small buffers are copied each time; a large one, such as a causal mask or a table of positions, only if it moves. torch
counts how often a tensor is written, but its batch norm writes past the count, and so does all that goes through
`.data`. So contents are compared too, by a checksum: after the first two windows, in which everything is copied, and
then after each doubling of their number. What has moved once is copied from then on.

What was given up: a large buffer that stands still for two windows and then begins to move cannot be put back into the
window in which it began, or in which that was noticed.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from typing import NamedTuple

from torch import Tensor, nn

from hasten.training.buffer_copies import Place, is_large
from hasten.training.checksums import checksum

TRIAL_WINDOWS = 2


class Moving:
    """modules: that hold buffers. places: of those to copy; the same object, as long as they are the same."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._holders, self._windows = [module._buffers for module in modules], 0
        self._sizes = [len(holder) for holder in self._holders]
        self.places: Sequence[Place] = [Place(holder, name) for holder in self._holders for name in holder]
        self._still: list[tuple[Place, _Seen]] = []  # large ones; none of them while the trial lasts

    @property
    def on_trial(self) -> bool:
        return self._windows <= TRIAL_WINDOWS

    def look(self) -> None:
        """A window begins."""
        self._windows += 1
        sizes = [*map(len, self._holders)]
        if sizes != self._sizes:
            self._take_new(sizes)
        if self._windows == 1:
            self._still = [(place, seen(place.tensor)) for place in self.places if is_large(place.tensor)]
        elif self._windows == TRIAL_WINDOWS + 1:
            large = {id(place) for place, _ in self._still}
            self.places = [place for place in self.places if id(place) not in large]
            self._copy_what_moved(compare=True)
        elif self._windows > TRIAL_WINDOWS and self._still:
            self._copy_what_moved(compare=self._windows & (self._windows - 1) == 0)

    def drop_new(self) -> None:
        """Let there be no buffer that the window has registered: it begins without."""
        for holder, size in zip(self._holders, self._sizes, strict=True):
            while len(holder) > size:
                holder.popitem()  # the latest

    def _take_new(self, sizes: list[int]) -> None:
        """A forward pass may register a buffer. One is copied from then on."""
        for holder, before in zip(self._holders, self._sizes, strict=True):
            self.places = [*self.places, *(Place(holder, name) for name in islice(holder, before, None))]
        self._sizes = sizes

    def _copy_what_moved(self, compare: bool) -> None:
        """compare: look at what is in them, too."""
        still = list[tuple[Place, _Seen]]()
        for place, then in self._still:
            moved = then.is_written(place.tensor) or (compare and then != seen(place.tensor))
            if moved:
                self.places = [*self.places, place]
            else:
                still.append((place, then))
        self._still = still


class _Seen(NamedTuple):
    """What tells one state of a large buffer from another."""

    tensor: int
    version: int
    checksum: int

    def is_written(self, tensor: Tensor | None) -> bool:
        """Whether that is known without looking at its content."""
        return tensor is None or (self.tensor, self.version) != (id(tensor), _version(tensor))


def seen(tensor: Tensor | None) -> _Seen:
    return _Seen(0, 0, 0) if tensor is None else _Seen(id(tensor), _version(tensor), checksum(tensor))


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # which does not count for those of inference_mode
