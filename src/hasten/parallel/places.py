"""What Python keeps in a place, an object's attributes or a variable: read, compared with what was there, put back."""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Iterable, Iterator
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
_NO_HOOKS: dict[Any, Any] = dict.fromkeys(_HOOKS, ())
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)


class Place(Protocol):
    """Something under each of its keys. owner: the module in which it was found, or None."""

    owner: nn.Module | None

    def read(self) -> dict[Any, Any]: ...

    def moved(self, then: dict[Any, Any]) -> Iterator[Any]: ...

    def put(self, key: Any, value: Any) -> None:
        """value: ABSENT for none."""

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        """Whether something has come to what was there, as to a log or a table: no switch does that."""
        ...

    def named(self, key: Any) -> str: ...


def differ(one: Any, other: Any) -> bool:
    return one is not other and not (
        type(one) is type(other) and is_plain(one) and is_plain(other) and bool(one == other)
    )


def is_plain(value: Any) -> bool:
    """Whether it can be compared, and nobody can write to it."""
    kind = type(value)  # an object may say that it is of another, and one derived from these compare as it likes
    if kind is tuple or kind is frozenset or kind is torch.Size:
        return len(value) <= MOST_ITEMS and all(map(is_plain, value))
    return value is None or value is ABSENT or kind in _PLAIN or issubclass(kind, Enum | np.generic)


class Dictionary:
    """An object's attributes, a dictionary, or a module's layers."""

    def __init__(
        self, held: dict[Any, Any], name: str, owner: nn.Module | None, but: Iterable[str] = (), *, grows: bool = False
    ) -> None:
        """but: what is not looked at. grows: it is a table of somebody's."""
        self._held, self._name, self.owner, self._but, self._grows = held, name, owner, frozenset(but), grows

    def read(self) -> dict[Any, Any]:
        return dict(self._held)

    def moved(self, then: dict[Any, Any]) -> Iterator[Any]:
        now = self._held
        if len(then) == len(now) and all(map(is_, then.values(), now.values())) and all(map(is_, then, now)):
            return  # nearly always
        for key in [*dict.fromkeys((*then, *now))]:
            if key not in self._but and differ(then.get(key, ABSENT), now.get(key, ABSENT)):
                yield key

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        return self._grows and key not in then

    def put(self, key: Any, value: Any) -> None:
        if value is ABSENT:
            dict.pop(self._held, key, None)
        else:
            dict.__setitem__(self._held, key, value)

    def named(self, key: Any) -> str:
        return f"{self._name}.{key}"


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
        return {"": self._held.tobytes()}

    def moved(self, then: dict[Any, Any]) -> Iterator[Any]:
        if then[""] != self._held.tobytes():
            yield ""

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        self._held[...] = np.frombuffer(value, self._held.dtype).reshape(self._held.shape)

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
        return {"": repr(self._held)}

    def moved(self, then: dict[Any, Any]) -> Iterator[Any]:
        if then[""] != repr(self._held):
            yield ""

    def grew(self, key: Any, then: dict[Any, Any]) -> bool:
        return False

    def put(self, key: Any, value: Any) -> None:
        self._held = count(*numbers_in(value))
        for put in self.puts:
            put(self._held)

    def named(self, key: Any) -> str:
        return self._name


def numbers_in(text: str) -> list[Any]:
    return literal_eval(f"[{text.removeprefix('count(').removesuffix(')')}]")
