"""Which tensors a forward pass moves, so that those can be copied at the start of each window: a model's buffers, and
parameters of a teacher that only the loss holds.

Small buffers are copied each time; a large one, such as a causal mask or a table of positions, only if it moves. torch
counts how often a tensor is written, but its batch norm writes past the count, and so does all that goes through
`.data`. So contents are compared too, by a checksum: after the first windows, in which everything may be copied, and
then after each doubling of their number. What has moved once is copied from then on.

What was given up: a large one that stands still at first and then begins to move cannot be put back into windows that
began before that was noticed. That this is so can be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor

from hasten.training.buffer_copies import Holder, Place, is_large
from hasten.training.checksums import checksum
from hasten.training.forms import can_be_copied, form_of

TRIAL_WINDOWS = 2


class Moving:
    """holders: where modules keep tensors by name.

    apart: numbers of tensors that others look after.
    may_stand: which are not copied any more once they have stood still; the others are, in each window.
    trial_windows: at first, in which all are copied.
    places: of those to copy; the same object, as long as they are the same.
    """

    def __init__(
        self,
        holders: Sequence[Holder],
        *,
        apart: Collection[int] = (),
        may_stand: Callable[[Tensor | None], bool] = is_large,
        trial_windows: int = TRIAL_WINDOWS,
    ) -> None:
        self.holders, self._may_stand = holders, may_stand
        self._trial_windows, self._windows = trial_windows, 0
        self._begun_with = [frozenset(holder) for holder in holders]
        self._sizes = [len(holder) for holder in holders]
        self.places: Sequence[Place] = [
            Place(holder, name) for holder in holders for name, each in holder.items() if id(each) not in apart
        ]
        self._first: list[tuple[Place, Seen]] = []
        self._still: list[tuple[Place, Seen]] = []  # they are in places too while the trial lasts

    @property
    def on_trial(self) -> bool:
        return self._windows <= self._trial_windows

    def has_moved_unseen(self) -> bool:
        """Whether one has moved, in this window or before it, that was not copied then."""
        return any(
            has_moved(then, place.tensor)
            for place, then in self._still
            if not (self.on_trial and _can_be_copied(place.tensor))
        )

    def moved(self) -> Iterator[str]:
        """The names of those that are not as the first window found them, and of those that are new since."""
        for holder, names in zip(self.holders, self._begun_with, strict=True):
            yield from (name for name in holder if name not in names)
        yield from (place.name for place, then in self._first if has_moved(then, place.tensor))

    def look(self) -> bool:
        """A window begins. Whether what is copied from now on should have been before."""
        self._windows += 1
        sizes = [*map(len, self.holders)]
        if sizes != self._sizes:
            self._take_new(sizes)
        if self._windows == 1:
            self._first = [(place, seen(place.tensor)) for place in self.places]
            self._still = [each for each in self._first if self._may_not_be_copied(each[0].tensor)]
        ends_trial = self._windows == self._trial_windows + 1
        if ends_trial:
            still = {id(place) for place, _ in self._still}
            self.places = [place for place in self.places if id(place) not in still]
        if not self._still or self.on_trial or self._windows == 1:
            return False
        return self._copy_what_moved(ends_trial or self._windows & (self._windows - 1) == 0) and not ends_trial

    def _may_not_be_copied(self, tensor: Tensor | None) -> bool:
        return self._may_stand(tensor) or not _can_be_copied(tensor)

    def _take_new(self, sizes: list[int]) -> None:
        """A forward pass may register one. It is copied from then on."""
        for holder, before in zip(self.holders, self._sizes, strict=True):
            self.places = [*self.places, *(Place(holder, name) for name in islice(holder, before, None))]
        self._sizes = sizes

    def _copy_what_moved(self, compare: bool) -> bool:
        """compare: look at what is in them, too. Whether one has moved."""
        still = list[tuple[Place, Seen]]()
        for place, then in self._still:
            moved = has_moved(then, place.tensor) if compare else then.is_written(place.tensor)
            if moved and _can_be_copied(place.tensor):
                self.places = [*self.places, place]
            else:
                still.append((place, then))
        found, self._still = len(still) < len(self._still), still
        return found


class Seen(NamedTuple):
    """What tells one state of a tensor from another."""

    tensor: int
    version: int
    form: tuple[Any, ...]
    checksum: int | None

    def is_written(self, tensor: Tensor | None) -> bool:
        """Whether that is known without looking at its content."""
        return (self.tensor, self.version) != ((0, 0) if tensor is None else (id(tensor), _version(tensor)))


def seen(tensor: Tensor | None) -> Seen:
    if tensor is None:
        return Seen(0, 0, (), 0)
    form = form_of(tensor) if can_be_copied(tensor) else ()
    return Seen(id(tensor), _version(tensor), form, checksum(tensor))


def has_moved(then: Seen, tensor: Tensor | None) -> bool:
    return then.is_written(tensor) or then != seen(tensor)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # which does not count for those of inference_mode


def _can_be_copied(tensor: Tensor | None) -> bool:
    return tensor is None or can_be_copied(tensor)
