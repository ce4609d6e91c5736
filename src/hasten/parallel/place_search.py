"""Where a model and its loss keep what they keep in Python.

Attributes of modules and of the user's own objects, with slots and classes; lists, sets, dictionaries and arrays that
lie in these; closures of their functions, and what these name of their own and the user's other modules; hooks of
modules. What torch, the standard library and numpy keep in objects of theirs is not looked for, nor what lies in
collections of many items: those are data.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from itertools import count
from types import CodeType, FunctionType, MethodType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor, nn

from hasten.parallel.places import (
    ABSENT,
    MOST_ITEMS,
    Array,
    Attributes,
    Count,
    Hooks,
    Items,
    Place,
    Table,
    Variable,
    is_plain,
    numbers_of,
)

_MOST = 20_000  # objects that are looked at
_OF_MODULES = vars(nn.Module()).keys() - {"training"}
_LIBRARIES = {*sys.stdlib_module_names, "torch", "hasten", "numpy"} - {"__main__"}
_COLLECTIONS = (list, set, deque)


class Found(NamedTuple):
    """iterators: names of those that are held, generators and others, which can be neither looked at nor put back.
    is_complete: not where too much hangs on the model."""

    places: list[Place]
    iterators: list[str]
    is_complete: bool


def found_in(model: nn.Module, loss: Any) -> Found:
    search = _Search()
    search.look_through(loss, "Job.loss", owner=None)
    for path, module in model.named_modules():
        search.look_through(module, path or "model", owner=module)
    return Found(search.places, search.iterators, search.is_complete)


class _Search:
    """Places in what it has looked through."""

    def __init__(self) -> None:
        self.places, self.iterators = list[Place](), list[str]()
        self._seen = dict[int, Any]()  # alive, or their numbers would be another's
        self._counts = dict[int, Count]()
        self._ahead = deque[tuple[Any, str, nn.Module | None]]()

    @property
    def is_complete(self) -> bool:
        return not self._ahead

    def look_through(self, value: Any, name: str, owner: nn.Module | None) -> None:
        self._ahead.append((value, name, owner))
        while self._ahead and len(self._seen) < _MOST:
            value, name, owner = self._ahead.popleft()
            if id(value) not in self._seen:
                self._seen[id(value)] = value
                self._look_at(value, name, owner)

    def _look_at(self, value: Any, name: str, owner: nn.Module | None) -> None:
        kind = type(value)  # what an object says of itself may be another's word, or raise
        if issubclass(kind, partial):
            self._add_each([value.func, *value.args, *value.keywords.values()], name, owner)
        elif issubclass(kind, MethodType):
            self._add_each([value.__self__, value.__func__], name, owner)
        elif issubclass(kind, FunctionType):
            self._look_at_function(value, name)
        elif kind is tuple and len(value) <= MOST_ITEMS:
            self._add_each(value, name, owner)
        elif kind in _COLLECTIONS and len(value) <= MOST_ITEMS:
            self.places.append(Items(value, name, owner))
            self._add_each(value, name, owner)
        elif kind is np.ndarray and value.size <= MOST_ITEMS and value.dtype.kind in "biufc" and value.flags.writeable:
            self.places.append(Array(value, name, owner))
        elif (kind is count and id(value) not in self._counts) or _only_goes_on(kind):
            self.iterators.append(name)
        elif issubclass(kind, dict) and len(value) <= MOST_ITEMS:
            self.places.append(Table(value, name, owner))
            self._add_values(value, name, owner)
        elif issubclass(kind, nn.Module):
            self._look_at_module(value, name, owner)
        elif not issubclass(kind, Tensor | type) and not _of_a_library(kind):
            self._look_at_object(value, name, owner)

    def _add_each(self, values: Iterable[Any], name: str, owner: nn.Module | None) -> None:
        self._ahead.extend((each, name, owner) for each in values)

    def _look_at_module(self, module: nn.Module, name: str, owner: nn.Module | None) -> None:
        self.places.append(Attributes(module._modules, name, None))
        self.places.append(Hooks(module, name))
        self._look_at_attributes(vars(module), name, owner, _OF_MODULES)
        self._look_at_class(type(module), name)

    def _look_at_object(self, value: Any, name: str, owner: nn.Module | None) -> None:
        held = _attribute(value, "__dict__")
        if type(held) is dict:
            self._look_at_attributes(held, name, owner)
        for key in _slots_of(type(value)):
            get, put = partial(_attribute, value, key), partial(object.__setattr__, value, key)
            self._look_at_variable(f"{name}.{key}", owner, get, put)
        self._look_at_class(type(value), name)

    def _look_at_attributes(
        self, held: dict[str, Any], name: str, owner: nn.Module | None, but: Collection[str] = ()
    ) -> None:
        self.places.append(Attributes(held, name, owner, but))
        self._add_values(held, name, owner, but)

    def _add_values(self, held: dict[Any, Any], name: str, owner: nn.Module | None, but: Collection[str] = ()) -> None:
        for key, value in [*held.items()]:
            if key not in but:
                self._look_at_count(value, f"{name}.{key}", owner, partial(held.__setitem__, key))
                self._ahead.append((value, f"{name}.{key}", owner))

    def _look_at_class(self, kind: type, name: str) -> None:
        """What it counts itself, and what its functions count elsewhere, is no single object's."""
        for each in kind.__mro__:
            if _of_a_library(each) or id(each) in self._seen:
                continue
            self._seen[id(each)] = each
            for key, value in [*vars(each).items()]:
                if issubclass(type(value), FunctionType):
                    self._ahead.append((value, name, None))
                elif issubclass(type(value), int | float | count) and not key.startswith("__"):
                    get, put = partial(vars(each).get, key, ABSENT), partial(setattr, each, key)
                    self._look_at_variable(f"{each.__name__}.{key}", None, get, put)

    def _look_at_function(self, function: FunctionType, name: str) -> None:
        code, globals_ = function.__code__, function.__globals__
        self._look_at_attributes(vars(function), name, None)
        self._add_each((*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()), name, None)
        for key, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
            get, put = partial(_attribute, cell, "cell_contents"), partial(setattr, cell, "cell_contents")
            self._look_at_variable(f"{name}.{key}", None, get, put)
        if not _of_a_library(function):
            named = {key for each in _codes_in(code) for key in each.co_names}
            seen = map(globals_.get, sorted(named))
            modules = [each for each in seen if type(each) is ModuleType and _is_users(each)]
            for held in (globals_, *map(vars, modules)):
                for key in sorted(named & held.keys()):
                    get, put = partial(held.get, key, ABSENT), partial(held.__setitem__, key)
                    self._look_at_variable(f"{name}.{key}", None, get, put)

    def _look_at_variable(
        self, name: str, owner: nn.Module | None, get: Callable[[], Any], put: Callable[[Any], object]
    ) -> None:
        value = get()
        self._look_at_count(value, name, owner, put)
        if is_plain(value) or issubclass(type(value), Tensor):  # most of the others never are another one
            self.places.append(Variable(name, owner, get, put))
        self._ahead.append((value, name, owner))

    def _look_at_count(self, value: Any, name: str, owner: nn.Module | None, put: Callable[[Any], object]) -> None:
        if type(value) is not count:
            return
        if id(value) not in self._counts:
            try:
                numbers_of(value)
            except (ValueError, SyntaxError):  # of numbers that cannot be read back
                return
            self._counts[id(value)] = place = Count(value, name, owner)
            self.places.append(place)
        self._counts[id(value)].puts.append(put)


def _attribute(value: Any, key: str) -> Any:
    try:
        return object.__getattribute__(value, key)
    except (AttributeError, ValueError):  # of a cell that holds nothing yet
        return ABSENT


def _slots_of(kind: type) -> Iterator[str]:
    for each in kind.__mro__:
        slots = () if _of_a_library(each) else vars(each).get("__slots__", ())
        yield from (key for key in ([slots] if isinstance(slots, str) else slots) if not key.startswith("__"))


def _only_goes_on(kind: type) -> bool:
    """Whether nobody can look where one has arrived: a generator, or what iter(), map(), zip() and others give."""
    is_one = issubclass(kind, Iterator) and kind.__module__ in ("builtins", "itertools")
    return is_one and kind is not count


def _is_users(module: ModuleType) -> bool:
    return module.__name__.partition(".")[0] not in _LIBRARIES and "site-packages" not in (module.__file__ or "")


def _codes_in(code: CodeType) -> Iterator[CodeType]:
    """The function's own, and those of functions within."""
    yield code
    for each in code.co_consts:
        if isinstance(each, CodeType):
            yield from _codes_in(each)


def _of_a_library(kind: type | FunctionType) -> bool:
    module = kind.__module__
    return kind is not SimpleNamespace and isinstance(module, str) and module.partition(".")[0] in _LIBRARIES
