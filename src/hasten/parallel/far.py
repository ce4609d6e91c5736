"""What a call leaves in Python, put far from where it stands: who reads it comes to another result.

Numbers are moved by so much, up or down, in collections too, and one that can grow has many more items; or numbers
stay, and such a collection has none. What cannot be moved in this way stays as it is.
"""

from __future__ import annotations

from typing import Any

import numpy as np

WAYS = (997, -997, 0)


def far(value: Any, by: int) -> Any:
    """by: one of the ways."""
    kind: Any = type(value)
    if isinstance(value, bool | np.bool_):
        return kind(not value)
    if isinstance(value, np.integer):
        bounds = np.iinfo(value.dtype)
        return kind(min(max(int(value) + by, bounds.min), bounds.max))
    if isinstance(value, int | float | complex | np.number):
        return kind(value + by)
    if kind is tuple:
        return tuple(far(each, by) for each in value)
    if kind is list:
        return [*far_items(tuple(value), by)]
    return value


def far_items(value: tuple[Any, ...], by: int) -> tuple[Any, ...]:
    """Of a list, a set or another collection."""
    return tuple(far(each, by) for each in value) * abs(by)
