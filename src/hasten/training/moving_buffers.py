"""Which tensors a forward pass moves, so that those can be copied at the start of each window: a model's buffers, and
parameters of a teacher that only the loss holds.

Small ones are copied each time; a large one, such as a causal mask or a table of positions, only if it moves. torch
counts how often a tensor is written, but its batch norm writes past the count, and so does all that goes through
`.data`. So contents are compared too, by a checksum: after the first windows, in which everything may be copied, and
then after each doubling of their number. What has moved once is copied from then on.

What was given up: a large one that stands still at first and then begins to move cannot be put back into the window in
which it began, or in which that was noticed. That this is so can be asked.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from hasten.training.buffer_copies import Place, is_large
from hasten.training.checksums import checksum

TRIAL_WINDOWS = 2


class Moving:
    """holders: where modules keep them by name. apart: numbers of tensors that others look after.

    trial_windows: at first, in which all are copied; 0 where large ones may be too many for that.
    places: of those to copy; the same object, as long as they are the same.
    """

    def __init__(
        self,
        holders: Sequence[dict[str, Tensor | None]],
        *,
        apart: Collection[int] = (),
        trial_windows: int = TRIAL_WINDOWS,
    ) -> None:
        self._holders, self._trial_windows, self._windows = holders, trial_windows, 0
        self._sizes = [len(holder) for holder in holders]
        self.places: Sequence[Place] = [
            Place(holder, name) for holder in holders for name, each in holder.items() if id(each) not in apart
        ]
        self._still: list[tuple[Place, Seen]] = []  # large ones; they are in places too while the trial lasts

    @property
    def on_trial(self) -> bool:
        return self._windows <= self._trial_windows

    @property
    def has_moved_unseen(self) -> bool:
        """Whether one has moved in this window that was not copied at its start."""
        return not self.on_trial and any(_has_moved(place, then) for place, then in self._still)

    def look(self) -> None:
        """A window begins."""
        self._windows += 1
        sizes = [*map(len, self._holders)]
        if sizes != self._sizes:
            self._take_new(sizes)
        if self._windows == 1:
            self._still = [(place, seen(place.tensor)) for place in self.places if is_large(place.tensor)]
        first = self._windows == self._trial_windows + 1  # in which not all are copied
        if first:
            large = {id(place) for place, _ in self._still}
            self.places = [place for place in self.places if id(place) not in large]
        if self._still and not self.on_trial and self._windows > 1:
            self._copy_what_moved(compare=first or self._windows & (self._windows - 1) == 0)

    def drop_new(self) -> None:
        """Let there be none that the window has registered: it begins without."""
        for holder, size in zip(self._holders, self._sizes, strict=True):
            while len(holder) > size:
                holder.popitem()  # the latest

    def _take_new(self, sizes: list[int]) -> None:
        """A forward pass may register one. It is copied from then on."""
        for holder, before in zip(self._holders, self._sizes, strict=True):
            self.places = [*self.places, *(Place(holder, name) for name in islice(holder, before, None))]
        self._sizes = sizes

    def _copy_what_moved(self, compare: bool) -> None:
        """compare: look at what is in them, too."""
        still = list[tuple[Place, Seen]]()
        for place, then in self._still:
            if _has_moved(place, then) if compare else then.is_written(place.tensor):
                self.places = [*self.places, place]
            else:
                still.append((place, then))
        self._still = still


class Seen(NamedTuple):
    """What tells one state of a tensor from another."""

    tensor: int
    version: int
    checksum: int

    def is_written(self, tensor: Tensor | None) -> bool:
        """Whether that is known without looking at its content."""
        return tensor is None or (self.tensor, self.version) != (id(tensor), _version(tensor))


def seen(tensor: Tensor | None) -> Seen:
    return Seen(0, 0, 0) if tensor is None else Seen(id(tensor), _version(tensor), checksum(tensor))


def _has_moved(place: Place, then: Seen) -> bool:
    return then.is_written(place.tensor) or then != seen(place.tensor)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # which does not count for those of inference_mode
