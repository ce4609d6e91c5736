"""Whether a data set uses the model that the job trains, as for rollouts, self-play and hard negatives.

Such data must be read between two updates, in the training process: whatever reads ahead reads with older weights.

The search is shallow. It starts at the data set and its collate function and goes LEVELS deep, through attributes,
items, functools.partial, and what inspect.getclosurevars names of the user's own functions: closures and globals. A
model counts where one of its parameters is trained by the job. One that is reached in another way (a registry, a cached
function, a state_dict) is not found. A collate function that is a method of the model counts as using it.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from functools import partial
from itertools import islice
from types import FunctionType, MethodType, ModuleType
from typing import Any

from torch import Tensor, nn

from hasten.data.sources.job_data import Source
from hasten.users_code import is_users_file

LEVELS = 4
ITEMS = 32  # of a list or dictionary, of which only the first are looked at

_Found = tuple[str, Any]  # the way to a value, such as "train.transform.model", and the value


def way_to_model(source: Source, model: nn.Module) -> str | None:
    """Where the data set or its collate function reaches a parameter that is trained; None where it does not."""
    if source.gathers:
        return None
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    level: list[_Found] = [(source.field, source.dataset), ("collate", source.collate)]
    seen = dict[int, Any]()  # with the values, as the id of one that is gone is used again
    for _ in range(LEVELS + 1):
        level = [(way, value) for way, value in level if seen.setdefault(id(value), value) is value]
        following = list[_Found]()
        for way, value in level:
            if _is_trained(value, trained):
                return way
            following += _parts(way, value)
        level = [(way, value) for way, value in following if id(value) not in seen]
    return None


def _is_trained(value: Any, trained: set[int]) -> bool:
    if isinstance(value, nn.Module):
        return any(id(parameter) in trained for parameter in value.parameters())
    return id(value) in trained


def _parts(way: str, value: Any) -> Iterator[_Found]:
    if isinstance(value, str | bytes | int | float | Tensor | nn.Module | ModuleType | None):
        return
    if isinstance(value, list | tuple):
        yield from ((f"{way}[{place}]", item) for place, item in enumerate(value[:ITEMS]))
    elif isinstance(value, dict):
        yield from ((f"{way}[{key!r}]", item) for key, item in islice(value.items(), ITEMS))
    elif isinstance(value, partial):
        yield from ((f"{way}.{name}", getattr(value, name)) for name in ("func", "args", "keywords"))
    elif isinstance(value, MethodType):
        yield from ((f"{way}.{name}", getattr(value, name)) for name in ("__self__", "__func__"))
    elif isinstance(value, FunctionType):
        yield from _of_function(value, frozenset())
    elif not isinstance(value, type):
        yield from _of_object(way, value)


def _of_object(way: str, value: Any) -> Iterator[_Found]:
    """Its attributes and those of its class, and what its methods name."""
    of_class = {name: item for base in reversed(type(value).__mro__[:-1]) for name, item in vars(base).items()}
    own = dict(getattr(value, "__dict__", {}))
    settings = {
        name: item
        for name, item in of_class.items()
        if not name.startswith("__") and not inspect.isroutine(item) and not inspect.isdatadescriptor(item)
    }
    yield from ((f"{way}.{name}", item) for name, item in (settings | own).items())
    # Among the globals of a function, Python counts each attribute that it names, so those of the object do not count.
    attributes = {*of_class, *own, *(name for item in own.values() for name in getattr(item, "__dict__", ()))}
    for item in of_class.values():
        function = item.fget if isinstance(item, property) else item
        if isinstance(function, FunctionType):
            yield from _of_function(function, attributes)


def _of_function(function: FunctionType, attributes: frozenset[str] | set[str]) -> Iterator[_Found]:
    """Closure, default arguments and the globals that it names. attributes: names that are no globals."""
    if not is_users_file(function.__code__.co_filename):
        return
    user = function.__qualname__
    defaults = [*(function.__defaults__ or ()), *(function.__kwdefaults__ or {}).values()]
    yield from ((f"{user}: a default argument", item) for item in defaults)
    try:
        named = inspect.getclosurevars(function)
    except ValueError:  # a variable of the function around it has no value yet
        return
    around = {name: item for name, item in named.globals.items() if name not in attributes}
    yield from ((f"{user}: {name}", item) for name, item in {**named.nonlocals, **around}.items())
