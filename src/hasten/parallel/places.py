"""What Python keeps in a place, an object's attributes or a variable: read, compared with what was there, put back."""

from __future__ import annotations

from ast import literal_eval
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import Enum
from itertools import count
from operator import is_
from typing import Any, Protocol

import numpy as np
import torch
from torch import nn

ABSENT: Any = object()
MOST_ITEMS = 64  # of a collection: larger ones are data

_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_DATA: dict[Any, Any] = {}  # what is read of a table that is larger
_NO_HOOKS: dict[Any, Any] = dict.fromkeys(_HOOKS, ())
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class Place(Protocol):
    """Something under each of its keys. owner: the module in which it was found, or None."""

    owner: nn.Module | None

    def read(self) -> dict[Any, Any]: ...

    def moved(self, then: dict[Any, Any]) -> Iterable[Any]: ...

    def put(self, key: Any, value: Any) -> None:
        """value: ABSENT for none."""

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        """Whether something has come to what was there, as to a log or a table: no switch does that."""
        ...

    def named(self, key: Any) -> str: ...


def differ(one: Any, other: Any) -> bool:
    if one is other:
        return False
    if type(one) is not type(other) or not is_plain(one) or not is_plain(other):
        return True
    if type(one) is tuple:
        return len(one) != len(other) or any(map(differ, one, other))
    return bool(one != other) and not bool(one != one and other != other)  # NaN is the same as NaN


def is_plain(value: Any) -> bool:
    """Whether it can be compared, and nobody can write to it."""
    kind = type(value)  # an object may say that it is of another, and one derived from these compare as it likes
    if kind is tuple or kind is frozenset or kind is torch.Size:
        return len(value) <= MOST_ITEMS and all(map(is_plain, value))
    return value is None or value is ABSENT or kind in _PLAIN or issubclass(kind, Enum | np.generic)


class Attributes:
    """Of an object, or a module's layers."""

    def __init__(self, held: dict[Any, Any], name: str, owner: nn.Module | None, but: Iterable[str] = ()) -> None:
        """but: what is not looked at."""
        self._held, self._name, self.owner, self._but = held, name, owner, frozenset(but)

    def read(self) -> dict[Any, Any]:
        return dict(self._held)

    def moved(self, then: dict[Any, Any]) -> Iterable[Any]:
        return [key for key in _keys_moved(then, self._held) if key not in self._but]

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        if value is ABSENT:
            self._held.pop(key, None)
        else:
            self._held[key] = value

    def named(self, key: Any) -> str:
        return f"{self._name}.{key}"


class Table:
    """Somebody's dictionary, under its keys, while it is small."""

    def __init__(self, held: dict[Any, Any], name: str, owner: nn.Module | None) -> None:
        self._held, self._name, self.owner = held, name, owner
        # Whose own class says what happens when something is put in is not asked; an ordered one would be broken.
        self._kind: type[dict[Any, Any]] = OrderedDict if isinstance(held, OrderedDict) else dict

    def read(self) -> dict[Any, Any]:
        return dict(self._held) if len(self._held) <= MOST_ITEMS else _DATA

    def moved(self, then: dict[Any, Any]) -> Iterable[Any]:
        return () if then is _DATA else _keys_moved(then, self._held)

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        return key not in then

    def put(self, key: Any, value: Any) -> None:
        if value is not ABSENT:
            self._kind.__setitem__(self._held, key, value)
        elif key in self._held:
            self._kind.__delitem__(self._held, key)

    def named(self, key: Any) -> str:
        return f"{self._name}.{key}"


def _keys_moved(then: dict[Any, Any], now: dict[Any, Any]) -> Sequence[Any]:
    if len(then) == len(now) and all(map(is_, then.values(), now.values())) and all(map(is_, then, now)):
        return ()  # nearly always
    return [key for key in dict.fromkeys((*then, *now)) if differ(then.get(key, ABSENT), now.get(key, ABSENT))]


class Hooks:
    """Of a module, by kind."""

    def __init__(self, module: nn.Module, name: str) -> None:
        self._held: dict[str, dict[int, Any]] = {kind: vars(module)[kind] for kind in _HOOKS}
        self._name = name
        self.owner: nn.Module | None = None

    def read(self) -> dict[Any, Any]:
        if not any(self._held.values()):
            return _NO_HOOKS  # quickly: there are many modules
        return {kind: tuple(held.items()) for kind, held in self._held.items()}

    def moved(self, then: dict[Any, Any]) -> Iterator[Any]:
        if then is _NO_HOOKS and not any(self._held.values()):
            return
        for kind, held in self._held.items():
            if len(held) != len(then[kind]) or any(held.get(number, ABSENT) is not hook for number, hook in then[kind]):
                yield kind

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        self._held[key].clear()
        self._held[key].update(value)

    def named(self, key: Any) -> str:
        return f"{self._name}'s {key.strip('_').replace('_', ' ')}"


class Items:
    """Of a list, a set or another collection."""

    def __init__(self, held: Any, name: str, owner: nn.Module | None) -> None:
        self._held, self._name, self.owner = held, name, owner

    def read(self) -> dict[Any, Any]:
        return {"": tuple(self._held) if len(self._held) <= MOST_ITEMS else ABSENT}

    def moved(self, then: dict[Any, Any]) -> Iterator[Any]:
        before, now = then[""], self.read()[""]
        if before is not ABSENT and (now is ABSENT or len(before) != len(now) or any(map(differ, before, now))):
            yield ""

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        before, now = then[""], self.read()[""]
        return now is ABSENT or (len(now) > len(before) and not any(map(differ, before, now)))

    def put(self, key: Any, value: Any) -> None:
        self._held.clear()
        getattr(self._held, "update" if isinstance(self._held, set) else "extend")(value)

    def named(self, key: Any) -> str:
        return self._name


class Array:
    """The numbers of a small one, which are written in place."""

    def __init__(self, held: np.ndarray[Any, Any], name: str, owner: nn.Module | None) -> None:
        self._held, self._name, self.owner = held, name, owner

    def read(self) -> dict[Any, Any]:
        return {"": tuple(self._held.ravel().tolist())}

    def moved(self, then: dict[Any, Any]) -> Iterator[Any]:
        if differ(then[""], self.read()[""]):
            yield ""

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        try:
            found = np.array(value, dtype=self._held.dtype)
        except OverflowError:  # of a number that was put far
            found = np.array(value).astype(self._held.dtype)
        self._held[...] = found.reshape(self._held.shape)

    def named(self, key: Any) -> str:
        return self._name


class Variable:
    """Of a function that encloses others, of a module of Python's, of a class, or in a slot."""

    def __init__(
        self, name: str, owner: nn.Module | None, get: Callable[[], Any], put: Callable[[Any], object]
    ) -> None:
        self._name, self.owner, self._get, self._put = name, owner, get, put

    def read(self) -> dict[Any, Any]:
        return {"": self._get()}

    def moved(self, then: dict[Any, Any]) -> Iterator[Any]:
        if differ(then[""], self._get()):
            yield ""

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        if value is not ABSENT:
            self._put(value)

    def named(self, key: Any) -> str:
        return self._name


class Count:
    """Where an itertools.count has arrived, which its text alone tells. Put back it is a new one, in all places that
    have it: there is no way to turn one back."""

    def __init__(self, held: count[Any], name: str, owner: nn.Module | None) -> None:
        self._held, self._name, self.owner = held, name, owner
        self.puts = list[Callable[[Any], object]]()

    def read(self) -> dict[Any, Any]:
        return {"": numbers_of(self._held)}

    def moved(self, then: dict[Any, Any]) -> Iterator[Any]:
        if then[""] != self.read()[""]:
            yield ""

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        self._held = count(*value)
        for put in self.puts:
            put(self._held)

    def named(self, key: Any) -> str:
        return self._name


def numbers_of(held: count[Any]) -> tuple[Any, ...]:
    """The next one, and how far to the one behind it. Raises ValueError or SyntaxError where they cannot be read."""
    return literal_eval(f"({repr(held).removeprefix('count(').removesuffix(')')},)")
