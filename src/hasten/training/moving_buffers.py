"""Which tensors a forward pass moves, so that those can be copied at the start of each window: a model's buffers, and
parameters of a teacher that only the loss holds.

Small buffers are copied each time; a large one, such as a causal mask or a table of positions, only if it moves. torch
counts how often a tensor is written, but its batch norm writes past the count, and so does all that goes through
`.data`. So contents are compared too, by a checksum: after the first windows, in which everything may be copied, and
then after each doubling of their number. What has moved once is copied from then on.

What was given up: a large one that stands still at first and then begins to move cannot be put back into the window in
which it began, or in which that was noticed. That this is so can be asked.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import islice
from typing import Any, NamedTuple

from torch import Tensor

from hasten.training.buffer_copies import Place, is_large
from hasten.training.checksums import checksum

TRIAL_WINDOWS = 2


class Moving:
    """holders: where modules keep tensors by name.

    apart: numbers of tensors that others look after.
    may_stand: which are not copied any more once they have stood still; the others are, in each window.
    trial_windows: at first, in which all are copied.
    each_window: whether counts are looked at in every window, or only where contents are.
    places: of those to copy; the same object, as long as they are the same.
    """

    def __init__(
        self,
        holders: Sequence[dict[str, Tensor | None]],
        *,
        apart: Collection[int] = (),
        may_stand: Callable[[Tensor | None], bool] = is_large,
        trial_windows: int = TRIAL_WINDOWS,
        each_window: bool = True,
    ) -> None:
        self._holders, self._may_stand = holders, may_stand
        self._trial_windows, self._each_window, self._windows = trial_windows, each_window, 0
        self._sizes = [len(holder) for holder in holders]
        self.places: Sequence[Place] = [
            Place(holder, name) for holder in holders for name, each in holder.items() if id(each) not in apart
        ]
        self._still: list[tuple[Place, Seen]] = []  # they are in places too while the trial lasts

    @property
    def on_trial(self) -> bool:
        return self._windows <= self._trial_windows

    @property
    def affordable(self) -> Sequence[Place]:
        """Those to copy; before the first window all, or none where there is no trial."""
        return self.places if self._windows or self._trial_windows else ()

    @property
    def has_moved_unseen(self) -> bool:
        """Whether one has moved in this window that was not copied at its start."""
        return not self.on_trial and any(has_moved(then, place.tensor) for place, then in self._still)

    def look(self) -> None:
        """A window begins."""
        self._windows += 1
        sizes = [*map(len, self._holders)]
        if sizes != self._sizes:
            self._take_new(sizes)
        if self._windows == 1:
            self._still = [(place, seen(place.tensor)) for place in self.places if self._may_stand(place.tensor)]
        ends_trial = self._windows == self._trial_windows + 1
        if ends_trial:
            still = {id(place) for place, _ in self._still}
            self.places = [place for place in self.places if id(place) not in still]
        if self._still and not self.on_trial and self._windows > 1:
            compare = ends_trial or self._windows & (self._windows - 1) == 0
            if compare or self._each_window:
                self._copy_what_moved(compare)

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
            if has_moved(then, place.tensor) if compare else then.is_written(place.tensor):
                self.places = [*self.places, place]
            else:
                still.append((place, then))
        self._still = still


class Seen(NamedTuple):
    """What tells one state of a tensor from another."""

    tensor: int
    version: int
    form: tuple[Any, ...]
    checksum: int | None

    def is_written(self, tensor: Tensor | None) -> bool:
        """Whether that is known without looking at its content."""
        return tensor is None or (self.tensor, self.version) != (id(tensor), _version(tensor))


def seen(tensor: Tensor | None) -> Seen:
    if tensor is None:
        return Seen(0, 0, (), 0)
    return Seen(id(tensor), _version(tensor), (tensor.dtype, tensor.shape), checksum(tensor))


def has_moved(then: Seen, tensor: Tensor | None) -> bool:
    if tensor is None:
        return then != seen(None)
    return then.is_written(tensor) or then != seen(tensor)


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # which does not count for those of inference_mode
