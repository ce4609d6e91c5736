"""What a model and its loss keep in Python: counts of calls, switches that are set for the length of one, hooks.

Whoever calls a loss to look at it, or leaves it in the middle as the stages of a pipeline do, leaves such things behind
as the user's own code would not. Places where it lies are found once; what they hold is read, compared with what they
held before, and put back. A value is another one if it is another object; what nobody can write to is compared.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from hasten.parallel.far import Way, far, far_items, holds_float
from hasten.parallel.place_search import found_in
from hasten.parallel.places import ABSENT, Items, Place, differ

Read = Sequence[dict[Any, Any]]


class Moved(NamedTuple):
    """What is another one than it was: in which of the places, under which key there."""

    place: int
    key: Any


class PythonState:
    """Of a model, and of its loss, a function or another object.

    iterators: names of those that they hold. is_complete: not where too much hangs on them to be looked through.
    """

    def __init__(self, model: nn.Module, loss: Any) -> None:
        found = found_in(model, loss)
        self._places: Sequence[Place] = found.places
        self.iterators, self.is_complete = found.iterators, found.is_complete

    def read(self) -> Read:
        """As it is now, for those below."""
        return [place.read() for place in self._places]

    def moved(self, before: Read) -> set[Moved]:
        """What has been set, made or lost since."""
        places = enumerate(zip(self._places, before, strict=True))
        return {Moved(number, key) for number, (place, then) in places for key in place.moved(then)}

    def put_back(self, before: Read, moved: Collection[Moved]) -> None:
        for each in moved:
            self._places[each.place].put(each.key, before[each.place].get(each.key, ABSENT))

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Inside, what moves is put back."""
        before = self.read()
        try:
            yield
        finally:
            self.put_back(before, self.moved(before))

    def alike(self, moved: Moved, one: Read, other: Read) -> bool:
        """Whether it is the same in both."""
        return _alike(*(each[moved.place].get(moved.key, ABSENT) for each in (one, other)))

    def grew(self, moved: Moved, before: Read) -> bool:
        """Whether it is a list or a table to which something has come."""
        return self._places[moved.place].grew(moved.key, before[moved.place])

    def grew_or_rose(self, moved: Moved, before: Read) -> bool:
        """Or a number, or some in a list or an array, that is greater now."""
        then, now = (read.get(moved.key) for read in (before[moved.place], self._places[moved.place].read()))
        return self.grew(moved, before) or _rose(then, now)

    def holds_float(self, moved: Moved, then: Read) -> bool:
        return holds_float(then[moved.place].get(moved.key))

    def put_far(self, moved: Moved, then: Read, way: Way) -> None:
        """From what it was then."""
        place, value = self._places[moved.place], then[moved.place].get(moved.key, ABSENT)
        if not isinstance(place, Items):
            place.put(moved.key, far(value, way))
        elif value is not ABSENT:  # as of one that has become long
            place.put(moved.key, far_items(value, way))

    def named(self, moved: Moved) -> str:
        return self._places[moved.place].named(moved.key)

    def lies_in(self, moved: Moved, modules: Collection[nn.Module]) -> bool:
        """Whether it was found in one of them."""
        return self._places[moved.place].owner in modules


def _rose(then: Any, now: Any) -> bool:
    if then is None:
        return type(now) in (int, float) or isinstance(now, np.number)
    if type(then) is not type(now):
        return False
    if type(then) is tuple:
        return len(then) == len(now) and all(not differ(*pair) or _rose(*pair) for pair in zip(then, now, strict=True))
    return (type(then) in (int, float) or isinstance(then, np.integer | np.floating)) and bool(now > then)


def _alike(one: Any, other: Any) -> bool:
    """Also in two lists or dictionaries."""
    if type(one) is list and type(other) is list:
        return len(one) == len(other) and all(map(_alike, one, other))
    if type(one) is dict and type(other) is dict:
        return one.keys() == other.keys() and all(_alike(each, other[key]) for key, each in one.items())
    return not differ(one, other)
