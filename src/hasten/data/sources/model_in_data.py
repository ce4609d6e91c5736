"""Whether a data set reads with the model that the job trains: rollouts, self-play, hard negatives.

Such data must be read between two updates, in the training process. A worker process has a copy of the model from when
it started, and whatever reads ahead of an update reads with older weights.

The look is shallow. It begins with the data set and its collate function and goes LEVELS deep: what they hold in
attributes, items, closures, default arguments and functools.partial, and the globals that the user's own code names. A
model counts where one of its parameters is one that the job trains, so an encoder of the data set's own does not. Of a
method of the model that is given as collate, or that a collate function names with the model, as one that tokenizes,
the modules and parameters count that it names.

What was given up: a model that is reached in another way, as through a registry or a cached function, is not found. Nor
is a global whose name is an attribute of the data set too: which of the two the code means, its names do not tell. Nor
is a plain tensor that shares a parameter's memory, as in a state_dict(): vectors that an embedding began with do too.
Nor is such a method that uses the model's weights only through `self(...)` or another method, nor a collate function
that names one and calls the model as well.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import islice
from types import CodeType, FunctionType, MemberDescriptorType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from hasten.data.loading.data_errors import is_theirs
from hasten.data.sources.job_data import Source

LEVELS = 4
ITEMS = 32  # of a list or dictionary, of which only the first are looked at

_CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset)


@dataclass(frozen=True, slots=True)
class _Found:
    value: Any
    path: str  # "train.transform.model"
    user: str = ""  # the function that names the global with which the path begins

    def __str__(self) -> str:
        return f"{self.path} in {self.user}" if self.user else self.path

    def part(self, value: Any, name: str) -> _Found:
        return replace(self, value=value, path=f"{self.path}{name}")


def way_to_model(source: Source, model: nn.Module) -> str | None:
    """Where the data set or its collate function reaches a parameter that is trained; None where it does not."""
    if source.gathers:
        return None
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    is_trained = partial(_is_trained, {id(each) for each in trained})
    level, seen = [_Found(source.dataset, source.field), *_of_collate(source.collate)], dict[int, Any]()
    for _ in range(LEVELS + 1):
        level = [found for found in level if seen.setdefault(id(found.value), found) is found]
        for found in level:
            if is_trained(found.value):
                return str(found)
        level = [part for found in level for part in _parts(found)]
    return None


def _is_trained(trained: set[int], value: Any) -> bool:
    if isinstance(value, nn.Module):
        return any(id(parameter) in trained for parameter in value.parameters())
    return id(value) in trained


def _of_collate(collate: Any) -> Iterator[_Found]:
    function = collate.__func__ if isinstance(collate, MethodType) else None
    if isinstance(function, FunctionType) and isinstance(collate.__self__, nn.Module):
        yield from _of_method(function, _Found(collate.__self__, "collate.__self__"))
    elif isinstance(collate, FunctionType):
        names = _names(collate.__code__)
        yield from (part for found in _parts_of_code(collate, frozenset()) for part in _used_by(names, found))
    else:
        yield _Found(collate, "collate")


def _of_method(function: FunctionType, held: _Found) -> Iterator[_Found]:
    """What a method of a model that is held names."""
    model, names = held.value, _names(function.__code__)
    yield from _parts_of_code(function, frozenset(dir(model)))
    parts = {**dict(model.named_children()), **dict(model.named_parameters(recurse=False))}
    yield from (held.part(parts[name], f".{name}") for name in sorted(names & parts.keys()))


def _used_by(names: set[str], held: _Found) -> Iterator[_Found]:
    """What a collate function with these names uses: of a model only methods, where it names some of its class."""
    methods = _own_methods(held.value) if isinstance(held.value, nn.Module) else {}
    named = sorted(names & methods.keys())
    if not named:
        yield held
    for name in named:
        yield from _of_method(methods[name], held.part(held.value, f".{name}"))


def _own_methods(model: nn.Module) -> dict[str, FunctionType]:
    """Of its class, and not of torch's, but for those that compute what the model computes."""
    classes = [each for each in type(model).__mro__ if not each.__module__.startswith("torch.")]
    found = {name: item for each in reversed(classes) for name, item in vars(each).items()}
    return {
        name: item
        for name, item in found.items()
        if isinstance(item, FunctionType) and name != "forward" and not name.startswith("__")
    }


def _parts(found: _Found) -> Iterator[_Found]:
    value = found.value
    if isinstance(value, str | bytes | int | float | Tensor | nn.Module | ModuleType | None):
        return
    if (kind := next((kind for kind in _CONTAINERS if isinstance(value, kind)), None)) is not None:
        items = islice(kind.__iter__(value), ITEMS)  # not by an iterator of the user's own, which could read samples
        yield from (found.part(item, f"[{place}]") for place, item in enumerate(items))
    if isinstance(value, dict):
        entries = islice(dict.items(value), ITEMS)
        yield from (found.part(item, f"[{key!r}]" if isinstance(key, str) else "[…]") for key, item in entries)
    if isinstance(value, partial):
        yield from (found.part(item, f".{name}") for name, item in _named(value, "func", "args", "keywords"))
    elif isinstance(value, MethodType):
        yield from (found.part(item, f".{name}") for name, item in _named(value, "__self__", "__func__"))
    elif isinstance(value, FunctionType):
        yield from _parts_of_code(value, frozenset())
    elif type(value) not in (*_CONTAINERS, dict):  # but classes of the user's that are one of these
        yield from _parts_of_object(found)


def _named(value: Any, *names: str) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(value, name)) for name in names)


def _parts_of_object(found: _Found) -> Iterator[_Found]:
    """Of an instance: its attributes, and what its methods name. Of a class: its attributes alone, as those of its
    instances are not known."""
    value = found.value
    is_class = isinstance(value, type)
    classes = [each for each in (value if is_class else type(value)).__mro__ if each is not object]
    shared = {name: item for each in reversed(classes) for name, item in vars(each).items()}
    own = {} if is_class else _own_attributes(value, shared)
    settings = {name: item for name, item in shared.items() if not (name.startswith("__") or _is_routine(item))}
    yield from (found.part(item, f".{name}") for name, item in (settings | own).items())
    if is_class:
        return
    # What is an attribute, or one of an attribute, is hardly the global of the same name.
    elsewhere = {name for item in own.values() for name in _own_attributes(item, {})}
    for function in (each for item in shared.values() for each in _functions_of(item)):
        yield from _parts_of_code(function, frozenset(shared) | frozenset(own) | elsewhere)


def _is_routine(item: Any) -> bool:
    return inspect.isroutine(item) or inspect.isdatadescriptor(item) or isinstance(item, cached_property)


def _own_attributes(value: Any, shared: dict[str, Any]) -> dict[str, Any]:
    try:
        own = object.__getattribute__(value, "__dict__")
    except AttributeError:
        own = {}
    slots = (name for name, item in shared.items() if isinstance(item, MemberDescriptorType) and hasattr(value, name))
    return {**own, **{name: getattr(value, name) for name in slots}}


def _functions_of(item: Any) -> list[FunctionType]:
    """The functions behind an entry of a class, as a property has three."""
    if isinstance(item, property):
        held = [item.fget, item.fset]
    elif isinstance(item, cached_property):
        held = [item.func]
    else:
        held = [item.__func__ if isinstance(item, classmethod | staticmethod) else item]
    return [each for each in held if isinstance(each, FunctionType)]


def _parts_of_code(function: FunctionType, no_globals: frozenset[str]) -> Iterator[_Found]:
    """What a function of the user's own is bound to: closure, default arguments, and the globals that it names."""
    code, user = function.__code__, function.__qualname__
    if not is_theirs(code.co_filename):
        return
    for name, cell in zip(code.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield _Found(cell.cell_contents, name, user)
        except ValueError:  # it is empty as yet
            continue
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield from (_Found(item, "a default argument", user) for item in defaults)
    names, around = _names(code), function.__globals__
    for name in sorted(names - no_globals):
        item = around.get(name)
        if isinstance(item, ModuleType) and is_theirs(getattr(item, "__file__", None) or "<"):
            yield from (_Found(vars(item)[each], f"{name}.{each}", user) for each in names if each in vars(item))
        elif name in around:
            yield _Found(item, name, user)


def _names(code: CodeType) -> set[str]:
    """That it names, in inner functions and comprehensions too."""
    return {*code.co_names}.union(*(_names(inner) for inner in code.co_consts if isinstance(inner, CodeType)))
