"""What a call leaves in Python, put far from where it stands: who reads it comes to another result.

There are several ways, for who reads it may ask for less or for more, or for a place in a table: numbers far up, far
down, the next ones, or half of what they are, in collections too, while one that can grow has many times its items, or
none. What cannot be moved stays as it is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np

_DISTANCE, _MANY = 997, 100


class Way(NamedTuple):
    """number: another number. times: how often a collection has its items."""

    number: Callable[[Any], Any]
    times: int


NEXT = Way(lambda number: number + 1, 2)
UP, DOWN = Way(lambda number: number + _DISTANCE, _MANY), Way(lambda number: number - _DISTANCE, _MANY)
HALF, EMPTY = Way(lambda number: number / 2, 1), Way(lambda number: number, 0)
WAYS = (NEXT, UP, DOWN, HALF, EMPTY)


def far(value: Any, way: Way) -> Any:
    kind: Any = type(value)  # derived ones may take no number that is not theirs
    if kind in (bool, np.bool_):
        return kind(not value)
    if issubclass(kind, np.integer) and not issubclass(kind, np.timedelta64):
        bounds = np.iinfo(kind)
        return kind(min(max(int(way.number(int(value))), bounds.min), bounds.max))
    if kind in (int, float, complex) or issubclass(kind, np.inexact):
        return kind(way.number(value))
    if kind is tuple:
        return tuple(far(each, way) for each in value)
    if kind is dict:
        return {key: far(each, way) for key, each in value.items()}
    return [*far_items(tuple(value), way)] if kind is list else value


def far_items(value: tuple[Any, ...], way: Way) -> tuple[Any, ...]:
    """Of a list, a set or another collection."""
    return tuple(far(each, way) for each in value) * way.times


def holds_float(value: Any) -> bool:
    """Whether it is one, or has some in it."""
    if type(value) in (tuple, list):
        return any(map(holds_float, value))
    return any(map(holds_float, value.values())) if type(value) is dict else isinstance(value, float | np.floating)
