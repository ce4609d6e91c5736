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

from hasten.parallel.far import far, far_items
from hasten.parallel.place_search import found_in
from hasten.parallel.places import ABSENT, Items, Place, differ

Read = Sequence[dict[Any, Any]]


class Moved(NamedTuple):
    """What is another one than it was: in which of the places, under which key there."""

    place: int
    key: Any


class PythonState:
    """Of a model, and of its loss, a function or another object.

    generators: names of those that they hold. is_complete: not where too much hangs on them to be looked through.
    """

    def __init__(self, model: nn.Module, loss: Any) -> None:
        found = found_in(model, loss)
        self._places: Sequence[Place] = found.places
        self.generators, self.is_complete = found.generators, found.is_complete

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
        return not differ(*(each[moved.place].get(moved.key, ABSENT) for each in (one, other)))

    def grew(self, moved: Moved, before: Read) -> bool:
        """Whether it is a list or a table to which something has come."""
        return self._places[moved.place].grew(moved.key, before[moved.place])

    def is_float(self, moved: Moved) -> bool:
        return isinstance(self._places[moved.place].read().get(moved.key), float | np.floating)

    def put_far(self, moved: Moved, then: Read, by: int) -> None:
        """Far from what it was then. by: how far, and whether up or down."""
        place, value = self._places[moved.place], then[moved.place].get(moved.key, ABSENT)
        if not isinstance(place, Items):
            place.put(moved.key, far(value, by))
        elif value is not ABSENT:  # as of one that has become long
            place.put(moved.key, far_items(value, by))

    def named(self, moved: Moved) -> str:
        return self._places[moved.place].named(moved.key)

    def lies_in(self, moved: Moved, modules: Collection[nn.Module]) -> bool:
        """Whether it was found in one of them."""
        return self._places[moved.place].owner in modules
