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
from operator import attrgetter, is_not
from typing import Any, NamedTuple

from torch import Tensor

from hasten.training.buffer_copies import Holder, Place, is_large
from hasten.training.checksums import checksum
from hasten.training.forms import can_be_copied, form_of

TRIAL_WINDOWS = 2
_SPARE = 2.0  # of what the trial copies, that must be free: two windows may be remembered
_COUNT = attrgetter("_version")


def affordable_trial(copied_bytes: int, free_bytes: float) -> int:
    """In how many windows all can be copied, though much of it may never move."""
    return TRIAL_WINDOWS if copied_bytes * _SPARE < free_bytes else 0


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
        self._names = self._begun_with = [*map(tuple, holders)]
        self.places: Sequence[Place] = [
            Place(holder, name) for holder in holders for name, each in holder.items() if id(each) not in apart
        ]
        self._first: list[tuple[Place, Seen]] = []
        self._still = _Watched([])  # they are in places too while the trial lasts

    @property
    def on_trial(self) -> bool:
        return self._windows <= self._trial_windows

    def has_moved_unseen(self) -> bool:
        """Whether one has moved, in this window or before it, that was not copied then."""
        return any(
            has_moved(then, place.tensor)
            for place, then in self._still.each
            if not (self.on_trial and _can_be_copied(place.tensor))
        )

    def moved(self) -> Iterator[str]:
        """The names of those that are not as the first window found them, and of those that are new since."""
        for holder, names in zip(self.holders, self._begun_with, strict=True):
            yield from (name for name in holder if name not in names)
        yield from (place.name for place, then in self._first if has_moved(then, place.tensor))

    def look(self, *, compare: bool = False) -> bool:
        """A window begins. Whether what is copied from now on should have been before.

        compare: contents too, also where it is not their turn.
        """
        self._windows += 1
        names = [*map(tuple, self.holders)]
        if names != self._names:
            self._take_new(names)
        if self._windows == 1:
            self._first = [(place, seen(place.tensor)) for place in self.places]
            self._still = _Watched([each for each in self._first if self._may_not_be_copied(each[0].tensor)])
        ends_trial = self._windows == self._trial_windows + 1
        if ends_trial:
            still = {id(place) for place, _ in self._still.each}
            self.places = [place for place in self.places if id(place) not in still]
        if self.on_trial or self._windows == 1:
            return False
        is_turn = compare or ends_trial or self._windows & (self._windows - 1) == 0
        return (is_turn or self._still.any_written()) and self._copy_what_moved() and not ends_trial

    def standing(self) -> list[Standing]:
        """What is copied while the trial lasts, or not at all. Of a window that began with a look at contents."""
        return [
            Standing(
                place=place,
                then=then if _can_be_copied(place.tensor) else seen(place.tensor),
                is_copied=self.on_trial and _can_be_copied(place.tensor),
            )
            for place, then in self._still.each
        ]

    def copy_from_now_on(self, places: Sequence[Place]) -> None:
        """What stood still, and from the next window on is copied in each."""
        moved = [place for place in places if _can_be_copied(place.tensor)]
        if not moved:
            return
        known = {*map(id, moved)}
        if not self.on_trial:
            self.places = [*self.places, *moved]
        self._still = _Watched([each for each in self._still.each if id(each[0]) not in known])

    def _copy_what_moved(self) -> bool:
        """From this window on. Whether something that stood still has moved."""
        watched = self._still
        self.copy_from_now_on([place for place, then in watched.each if has_moved(then, place.tensor)])
        return self._still is not watched

    def _may_not_be_copied(self, tensor: Tensor | None) -> bool:
        return self._may_stand(tensor) or not _can_be_copied(tensor)

    def _take_new(self, names: list[tuple[str, ...]]) -> None:
        """A forward pass may register one. It is copied from then on."""
        before = {(id(holder), name) for holder, had in zip(self.holders, self._names, strict=True) for name in had}
        before |= {(id(place.holder), place.name) for place in self.places}
        places = [Place(holder, name) for holder in self.holders for name in holder]
        self.places = [*self.places, *(each for each in places if (id(each.holder), each.name) not in before)]
        self._names = names


class Standing(NamedTuple):
    place: Place
    then: Seen
    is_copied: bool

    def has_moved(self) -> bool:
        return has_moved(self.then, self.place.tensor)


class _Watched:
    """each: what stands still, and how it was when that began to be watched."""

    def __init__(self, each: list[tuple[Place, Seen]]) -> None:
        self.each = each
        self._tensors = [place.tensor for place, _ in each]
        self._counting, self._versions = list[Tensor](), list[int]()
        for (_, then), tensor in zip(each, self._tensors, strict=True):
            if tensor is not None and not tensor.is_inference():
                self._counting.append(tensor)
                self._versions.append(then.version)

    def any_written(self) -> bool:
        """Whether that is known without looking at contents. Asked in each window, of what can be hundreds."""
        now = [place.holder.get(place.name) for place, _ in self.each]
        return any(map(is_not, now, self._tensors)) or [*map(_COUNT, self._counting)] != self._versions


class Seen(NamedTuple):
    """What tells one state of a tensor from another."""

    tensor: int
    version: int
    form: tuple[Any, ...]
    checksum: int | None


def seen(tensor: Tensor | None) -> Seen:
    if tensor is None:
        return Seen(0, 0, (), 0)
    form = form_of(tensor) if can_be_copied(tensor) else ()
    return Seen(id(tensor), _version(tensor), form, checksum(tensor))


def has_moved(then: Seen, tensor: Tensor | None) -> bool:
    if then.tensor != (0 if tensor is None else id(tensor)) or then.version != _version(tensor):
        return True
    return then != seen(tensor)  # which looks at its content


def _version(tensor: Tensor | None) -> int:
    return 0 if tensor is None or tensor.is_inference() else tensor._version  # torch counts none of inference_mode


def _can_be_copied(tensor: Tensor | None) -> bool:
    return tensor is None or can_be_copied(tensor)
