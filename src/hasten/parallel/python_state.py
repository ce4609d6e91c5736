"""What a model and its loss keep in plain Python: counts of calls, switches that are set for the length of one, hooks.

Whoever calls a loss to look at it, or leaves it in the middle as the stages of a pipeline do, leaves such things behind
as the user's own code would not. They are found once: attributes of modules and of other objects that these hold, lists
and dictionaries, closures and globals of functions. What a library keeps for itself is not looked for.
"""

from __future__ import annotations

from ast import literal_eval
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence, Set
from contextlib import contextmanager
from functools import partial
from itertools import count
from operator import is_
from types import CellType, FunctionType, MethodType
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

_MOST, _MOST_ITEMS = 50_000, 64  # what is larger is data
_HOOKS = (
    "_forward_hooks",
    "_forward_hooks_with_kwargs",
    "_forward_hooks_always_called",
    "_forward_pre_hooks",
    "_forward_pre_hooks_with_kwargs",
    "_backward_hooks",
    "_backward_pre_hooks",
)
_OF_MODULES = vars(nn.Module()).keys()
_LIBRARIES = ("torch", "hasten", "numpy", "builtins", "collections")
_PLAIN = (bool, int, float, complex, str, bytes, torch.dtype, torch.device)
_ABSENT: Any = object()

Read = Sequence[Any]


class Moved(NamedTuple):
    """What is another one than it was: in which of the places, and what there."""

    place: int
    key: Hashable


class PythonState:
    """Of a model, and of its loss, a function or another object."""

    def __init__(self, model: nn.Module, loss: Any) -> None:
        modules = dict(model.named_modules())
        self._objects, self._children = _Dictionaries(), _Dictionaries(anything=True)
        self._places: list[_Place] = [self._objects, self._children, _Hooks([*modules.values()])]
        self._seen = dict[int, Any]()  # alive, or their numbers would be another's
        for path, module in modules.items():
            self._children.add(module._modules, path or "model")
            self._find(module, path or "model")
        self._find(loss, "Job.loss")
        self._seen.clear()

    def read(self) -> Read:
        """As it is now, for those below."""
        return [place.read() for place in self._places]

    def moved(self, before: Read) -> set[Moved]:
        """What has been set, made or lost since."""
        places = enumerate(zip(self._places, before, strict=True))
        return {Moved(number, key) for number, (place, then) in places for key in place.moved(then)}

    def put_back(self, before: Read, but: Set[Moved] = frozenset()) -> None:
        """but: what stays as it is."""
        for each in self.moved(before) - but:
            self._places[each.place].put_back(each.key, before[each.place])

    @contextmanager
    def as_it_was(self) -> Iterator[None]:
        """Inside, what moves is put back."""
        before = self.read()
        try:
            yield
        finally:
            self.put_back(before)

    def alike(self, moved: Moved, one: Read, other: Read) -> bool:
        """Whether it is the same in both."""
        place = self._places[moved.place]
        return not _differ(place.value(moved.key, one[moved.place]), place.value(moved.key, other[moved.place]))

    def named(self, moved: Moved) -> str:
        return self._places[moved.place].named(moved.key)

    def lies_in(self, moved: Moved, modules: Iterable[nn.Module]) -> bool:
        """Whether it is an attribute of one of them."""
        place = self._places[moved.place]
        return place is self._objects and any(self._objects.is_of(moved.key, vars(each)) for each in modules)

    def _find(self, value: Any, name: str) -> None:
        if id(value) in self._seen or len(self._seen) >= _MOST or isinstance(value, Tensor | type):
            return
        self._seen[id(value)] = value
        if isinstance(value, partial):
            self._find_each([value.func, *value.args, *value.keywords.values()], name)
        elif isinstance(value, MethodType):
            self._find_each([value.__self__, value.__func__], name)
        elif isinstance(value, FunctionType):
            self._find_in_function(value, name)
        elif isinstance(value, list | tuple) and len(value) <= _MOST_ITEMS:
            if isinstance(value, list):
                self._places.append(_Variable(name, partial(tuple, value), partial(value.__setitem__, slice(None))))
            self._find_each(value, name)
        elif isinstance(value, dict) and len(value) <= _MOST_ITEMS:
            self._find_in_dictionary(value, name)
        elif isinstance(value, nn.Module) or not _of_a_library(type(value)):
            self._find_in_object(value, name)

    def _find_each(self, values: Iterable[Any], name: str) -> None:
        for each in values:
            self._find(each, name)

    def _find_in_object(self, value: Any, name: str) -> None:
        if isinstance(getattr(value, "__dict__", None), dict):
            self._find_in_dictionary(vars(value), name)
        if isinstance(value, nn.Module):
            self._find(type(value).forward, name)
        elif callable(value):
            self._find(type(value).__call__, name)

    def _find_in_dictionary(self, held: dict[Any, Any], name: str) -> None:
        self._objects.add(held, name)
        for key, value in [*held.items()]:
            if type(value) is count:
                self._places.append(_Variable(f"{name}.{key}", partial(held.get, key), partial(held.__setitem__, key)))
            elif key not in _OF_MODULES:
                self._find(value, f"{name}.{key}")

    def _find_in_function(self, function: FunctionType, name: str) -> None:
        code, held = function.__code__, function.__globals__
        places = {
            key: (partial(_content, cell), partial(setattr, cell, "cell_contents"))
            for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True)
        }
        if not _of_a_library(function):
            known = [key for key in code.co_names if key in held]
            places |= {key: (partial(held.get, key), partial(held.__setitem__, key)) for key in known}
        for key, (get, put) in places.items():
            self._places.append(_Variable(f"{name}.{key}", get, put))
            self._find(get(), f"{name}.{key}")


class _Place(Protocol):
    def read(self) -> Any: ...

    def moved(self, then: Any) -> Iterator[Hashable]: ...

    def put_back(self, key: Any, then: Any) -> None: ...

    def value(self, key: Any, then: Any) -> Any: ...

    def named(self, key: Any) -> str: ...


class _Dictionaries:
    """Many of them, which are read faster in one place than in many. anything: whatever lies in them is put back, and
    not what is plain alone."""

    def __init__(self, *, anything: bool = False) -> None:
        self._held, self._names, self._anything = list[dict[Any, Any]](), list[str](), anything

    def add(self, held: dict[Any, Any], name: str) -> None:
        self._held.append(held)
        self._names.append(name)

    def is_of(self, key: Any, held: dict[Any, Any]) -> bool:
        return self._held[key[0]] is held

    def read(self) -> list[dict[Any, Any]]:
        return [*map(dict, self._held)]

    def moved(self, then: list[dict[Any, Any]]) -> Iterator[tuple[int, Any]]:
        for number, (before, now) in enumerate(zip(then, self._held, strict=True)):
            if len(before) == len(now) and all(map(is_, before.values(), now.values())):
                continue  # nearly always
            for key in [*dict.fromkeys((*before, *now))]:
                pair = before.get(key, _ABSENT), now.get(key, _ABSENT)
                if _differ(*pair) and (self._anything or all(map(_is_plain, pair))):
                    yield number, key

    def put_back(self, key: tuple[int, Any], then: list[dict[Any, Any]]) -> None:
        number, name = key
        if name in then[number]:
            self._held[number][name] = then[number][name]
        else:
            self._held[number].pop(name, None)

    def value(self, key: tuple[int, Any], then: list[dict[Any, Any]]) -> Any:
        return then[key[0]].get(key[1], _ABSENT)

    def named(self, key: tuple[int, Any]) -> str:
        return f"{self._names[key[0]]}.{key[1]}"


class _Hooks:
    """Of modules: those are taken away again that have come."""

    def __init__(self, modules: Sequence[nn.Module]) -> None:
        self._held: list[dict[int, Any]] = [vars(module)[name] for module in modules for name in _HOOKS]

    def read(self) -> list[int]:
        return [*map(len, self._held)]

    def moved(self, then: list[int]) -> Iterator[int]:
        if (now := self.read()) != then:
            yield from (number for number, (before, many) in enumerate(zip(then, now, strict=True)) if many > before)

    def put_back(self, key: int, then: list[int]) -> None:
        while len(self._held[key]) > then[key]:
            self._held[key].popitem()

    def value(self, key: int, then: list[int]) -> int:
        return then[key]

    def named(self, key: int) -> str:
        return "a hook"


class _Variable:
    """Of an enclosing function, or a global; the items of a list; or an itertools.count, of which its text alone tells
    where it is."""

    def __init__(self, name: str, get: Callable[[], Any], put: Callable[[Any], None]) -> None:
        self._name, self._get, self._put = name, get, put

    def read(self) -> Any:
        found = self._get()
        return _At(repr(found)) if type(found) is count else found

    def moved(self, then: Any) -> Iterator[str]:
        now = self.read()
        if then is not now and _differ(then, now) and _is_plain(then) and _is_plain(now):
            yield ""

    def put_back(self, key: str, then: Any) -> None:
        self._put(count(*literal_eval(f"[{then.text[6:-1]}]")) if isinstance(then, _At) else then)

    def value(self, key: str, then: Any) -> Any:
        return then

    def named(self, key: str) -> str:
        return self._name


class _At(NamedTuple):
    text: str


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing is in it yet
        return object()  # which is not plain, and so not put back


def _of_a_library(kind: type | FunctionType) -> bool:
    return (kind.__module__ or "").partition(".")[0] in _LIBRARIES


def _differ(one: Any, other: Any) -> bool:
    return one is not other and not (type(one) is type(other) and _is_plain(one) and one == other)


def _is_plain(value: Any) -> bool:
    if isinstance(value, tuple):
        return len(value) <= _MOST_ITEMS and all(map(_is_plain, value))
    return value is None or value is _ABSENT or isinstance(value, _PLAIN)
