"""What hangs on a job's model and loss: the random generators and the modules that can be reached from them.

A step draws from generators that neither the model nor the loss holds itself: one lies in a list, in a helper object,
in the function that was given to hasten.supervised, or is a global of the user's file. So all that a step can come to
is gone through: attributes, containers, what functions close over, their defaults, and the globals that their code
names. Objects, classes and globals are followed where they are the user's own; what is installed is only looked into
where it wraps something of theirs. No code of the user's runs for it, and no property is asked.

It is done once, before the first step, because a run that goes on has to find the same under the same names: later an
object may hang in more places than it began with.
"""

from __future__ import annotations

import argparse
import functools
import gc
import random
import sys
import types
from collections import deque
from collections.abc import Iterator
from itertools import islice
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from hasten.data.generator_states import KINDS, is_generator
from hasten.training.supervised import OnItsDevice
from hasten.training.user_code import is_users

_CONTAINERS = (dict, list, tuple, deque)
_SETS = (set, frozenset)
_NAMESPACES = (types.SimpleNamespace, argparse.Namespace)
_WRAPPERS = (staticmethod, classmethod)
_CALLABLES = (
    *(types.FunctionType, types.MethodType, types.BuiltinMethodType, functools.partial),
    type(functools.cache(lambda: None)),
)
_PLAIN = frozenset({type(None), bool, int, float, str, torch.Tensor, nn.Parameter})  # by far the most there is
_NOT_ATTRIBUTES = frozenset({"_parameters", "_buffers", "_modules", "_compiled_call_impl", "__weakref__"})
_LONGEST = 1_000  # items of one container: those of a data set are not worth the time
_DEEPEST = 20
_MOST = 50_000  # things looked at in all, modules of the model aside: some 100 ms

Part = tuple[str, Any, Any]
"""(its name, what holds it, by which key)."""


class Held(NamedTuple):
    """Where something lies. What holds it may put another there at any time."""

    place: str
    holder: Any
    key: Any

    @property
    def value(self) -> Any:
        """None where there is nothing any more."""
        kind = type(self.holder)
        try:
            if issubclass(kind, dict):
                return dict.get(self.holder, self.key)
            if issubclass(kind, list):
                return list.__getitem__(self.holder, self.key)
            return self.holder.cell_contents if kind is types.CellType else self.holder[self.key]
        except (IndexError, KeyError, ValueError):  # the last: a variable that is not set yet
            return None


class Reached(NamedTuple):
    """modules: by place; the model's begin with "model". whole: False where there was too much to go through."""

    generators: tuple[Held, ...]
    modules: dict[str, nn.Module]
    whole: bool


def reached(model: nn.Module, loss: Any, device: torch.device) -> Reached:
    """device: the loss that hasten.supervised was given is looked into as it is used there."""
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", torch.cuda.current_device())  # as a prediction says where it is
    walk = _Walk(device)
    walk.take(Held("model", (model,), 0), 0)
    walk.take(Held("loss", (loss,), 0), 0)
    whole = walk.through()
    return Reached(tuple(walk.generators), walk.modules, whole)


class _Walk:
    """The nearest first, so that a thing has the shortest of its names. seen: kept alive, that no id is used twice."""

    def __init__(self, device: torch.device) -> None:
        self.generators, self.modules = list[Held](), dict[str, nn.Module]()
        self._device, self._places = device, set[str]()
        self._seen: dict[int, Any] = {id(each): each for each in _of_everyone()}
        self._waiting = deque[tuple[str, Any, int]]()

    def through(self) -> bool:
        looked, whole = 0, True
        while self._waiting and looked < _MOST:
            place, value, depth = self._waiting.popleft()
            for name, holder, key in _parts(value, self._device):
                looked += not issubclass(type(value), nn.Module)
                held = Held(f"{place}.{name}" if name else place, holder, key)
                whole &= depth < _DEEPEST or not self._leads_on(held.value)
                if depth < _DEEPEST:
                    self.take(held, depth + 1)
        return whole and not self._waiting

    def take(self, held: Held, depth: int) -> None:
        value = held.value
        if not self._leads_on(value):
            return
        self._seen[id(value)] = value
        if is_generator(value):
            self.generators.append(held._replace(place=self._free(held.place)))
        elif issubclass(type(value), nn.Module):
            self._take_modules(held.place, value, depth)
        else:
            self._waiting.append((held.place, value, depth))

    def _take_modules(self, place: str, root: nn.Module, depth: int) -> None:
        for name, module in _below(root):
            if module is root or id(module) not in self._seen:
                self._seen[id(module)] = module
                free = self._free(f"{place}.{name}" if name else place)
                self.modules[free] = module
                self._waiting.append((free, module, depth))

    def _leads_on(self, value: Any) -> bool:
        kind = type(value)  # isinstance would ask the value for its class, which can be code of the user's
        if kind in _PLAIN or id(value) in self._seen or kind is random.SystemRandom:
            return False
        return issubclass(kind, (*KINDS, nn.Module)) or _has_parts(value, kind)

    def _free(self, place: str) -> str:
        name, number = place, 1
        while name in self._places:
            number += 1
            name = f"{place}#{number}"
        self._places.add(name)
        return name


def _of_everyone() -> list[Any]:
    """The global generators, which are saved by themselves."""
    everyones: Any = (random.random, np.random.random)
    return [*(each.__self__ for each in everyones), torch.default_generator, *torch.cuda.default_generators]


def _below(root: nn.Module) -> Iterator[tuple[str, nn.Module]]:
    """As named_modules() has them, which a class may have replaced."""
    waiting, seen = [("", root)], set[int]()
    while waiting:
        name, module = waiting.pop()
        if id(module) not in seen:
            seen.add(id(module))
            yield name, module
            below = [
                (f"{name}.{key}" if name else key, each) for key, each in module._modules.items() if each is not None
            ]
            waiting += reversed(below)


def _has_parts(value: Any, kind: type) -> bool:
    """Whether something of the user's can hang on it."""
    if issubclass(kind, _CONTAINERS):
        return _base(kind, _CONTAINERS).__len__(value) > 0
    if issubclass(kind, _SETS):  # the order of several is another in each process, and so would be their names
        return _base(kind, _SETS).__len__(value) == 1
    if issubclass(kind, (*_CALLABLES, *_WRAPPERS, *_NAMESPACES, property, types.MappingProxyType, OnItsDevice)):
        return True
    return _is_own(value) if issubclass(kind, type) else _is_own(kind)


def _parts(value: Any, device: torch.device) -> Iterator[Part]:
    kind = type(value)
    if issubclass(kind, OnItsDevice):
        yield "loss", (value.on(device),), 0
    elif issubclass(kind, nn.Module):
        yield from _attributes(value)
    elif issubclass(kind, dict):
        for number, (key, each) in enumerate(islice(dict.items(value), _LONGEST)):
            # To look for a key of the user's own kind would be to call its code.
            yield (key, value, key) if type(key) is str else (str(number), (each,), 0)
    elif issubclass(kind, (list, tuple, deque)):
        base = _base(kind, (list, tuple, deque))
        for number, each in enumerate(islice(base.__iter__(value), _LONGEST)):
            yield (str(number), value, number) if base is list else (str(number), (each,), 0)
    elif issubclass(kind, _SETS):
        yield "0", tuple(_base(kind, _SETS).__iter__(value)), 0
    elif issubclass(kind, types.MappingProxyType):
        yield "", gc.get_referents(value), 0
    elif issubclass(kind, functools.partial):
        yield from (("", (value.func,), 0), *_parts(value.args, device), *_parts(value.keywords, device))
    elif issubclass(kind, type):
        for name in islice(vars(value), _LONGEST):
            yield name, vars(value), name
    elif issubclass(kind, (property, *_WRAPPERS)):
        yield "", (value.fget if kind is property else value.__func__,), 0
    elif issubclass(kind, types.FunctionType):
        yield from _parts_of_function(value)
    elif issubclass(kind, types.MethodType):
        yield from (("", (value.__self__,), 0), ("", (value.__func__,), 0))
    elif issubclass(kind, types.BuiltinMethodType):
        yield "", (value.__self__,), 0
    else:
        yield from _attributes(value)


def _base(kind: type, kinds: tuple[type, ...]) -> Any:
    """Of which of them it is: it may have replaced how it is gone through."""
    return next(each for each in kinds if issubclass(kind, each))


def _attributes(value: Any) -> Iterator[Part]:
    """Of an object or a module, with what its classes hold, such as methods that name globals."""
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    for name in islice(own, _LONGEST):
        if name not in _NOT_ATTRIBUTES:
            yield name, own, name
    for each in type(value).__mro__:
        if _is_own(each):
            yield each.__name__, (each,), 0
            for name, member in vars(each).items():
                if type(member) is types.MemberDescriptorType:
                    yield name, _Slots(value), member


class _Slots:
    """An object that keeps attributes outside of a dictionary, as a holder of them."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def __getitem__(self, member: types.MemberDescriptorType) -> Any:
        try:
            return member.__get__(self._value)
        except AttributeError:
            raise KeyError(member.__name__) from None


def _parts_of_function(function: types.FunctionType) -> Iterator[Part]:
    code, defaults = function.__code__, function.__defaults__ or ()
    for name in vars(function):
        yield name, vars(function), name
    if _is_own_file(code.co_filename) or function.__globals__.get("__name__") == "__main__":
        for name in _named_in(code):
            value = function.__globals__.get(name)
            if type(value) is not types.ModuleType:
                yield name, function.__globals__, name
            elif _is_own_module(value):
                yield from ((f"{name}.{each}", vars(value), each) for each in _named_in(code) if each in vars(value))
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        yield name, cell, None
    for number, name in enumerate(code.co_varnames[code.co_argcount - len(defaults) : code.co_argcount]):
        yield name, defaults, number
    for name in function.__kwdefaults__ or ():
        yield name, function.__kwdefaults__, name


def _named_in(code: types.CodeType) -> dict[str, None]:
    """Globals and attributes that it names, and the functions written inside it, in this order."""
    names = dict.fromkeys(code.co_names)
    for each in code.co_consts:
        if type(each) is types.CodeType:
            names |= _named_in(each)
    return names


def _is_own(kind: type) -> bool:
    """Whether a class is the user's."""
    name = type.__dict__["__module__"].__get__(kind)
    module = sys.modules.get(name) if type(name) is str else None
    return type(module) is types.ModuleType and _is_own_module(module)


def _is_own_module(module: types.ModuleType) -> bool:
    file = vars(module).get("__file__")
    return vars(module).get("__name__") == "__main__" or (type(file) is str and _is_own_file(file))


@functools.lru_cache(maxsize=4096)
def _is_own_file(name: str) -> bool:
    return is_users(name) and not {"site-packages", "dist-packages"} & set(name.replace("\\", "/").split("/"))
