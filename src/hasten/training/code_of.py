"""A function of the job, as a digest of what its code says.

Two functions are the same here when they were written the same: their bytecode, its constants, and the plain values and
functions that they close over, have as defaults or find among the globals. Where something lies in memory, on which
line it was written and what it collects while it runs is no part of it, so that one file gives one digest. Of torch's
and hasten's own functions the name is enough.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from functools import partial
from inspect import getattr_static
from types import CodeType, FunctionType, MethodType
from typing import Any

from torch import nn

from hasten.parallel.own_class import own_class
from hasten.training.settings import is_library, plain_attributes

_DEEPEST = 20  # calls from one function into the next


def digest_of(function: Any) -> str:
    """Of a function, a partial, a method, a callable object or a module."""
    digest = hashlib.sha256()
    for line in _lines(function, set(), 0):
        digest.update(line.encode("utf-8", "backslashreplace") + b"\n")
    return digest.hexdigest()[:16]


def _lines(value: Any, seen: set[int], depth: int) -> Iterator[str]:
    if value is None or isinstance(value, bool | int | float | str):
        yield repr(value)
    elif isinstance(value, CodeType):
        yield from _lines_of_code(value)
    elif isinstance(value, frozenset):
        yield from sorted(map(repr, value))  # its own order is another in every process
    elif isinstance(value, tuple):
        yield f"tuple of {len(value)}"
        for each in value:
            yield from _lines(each, seen, depth)
    elif depth > _DEEPEST or id(value) in seen:
        yield "known"
    else:
        seen.add(id(value))
        yield from _lines_of_object(value, seen, depth + 1)


def _lines_of_object(value: Any, seen: set[int], depth: int) -> Iterator[str]:
    if isinstance(value, partial):
        yield "partial"
        yield from _lines((value.func, *value.args), seen, depth)
        yield from _lines_of_named(value.keywords, seen, depth)
    elif isinstance(value, MethodType):
        yield from _lines((value.__func__, value.__self__), seen, depth)
    elif isinstance(value, FunctionType):
        yield from _lines_of_function(value, seen, depth)
    elif isinstance(value, nn.Module):
        for name, module in value.named_modules():
            yield f"{name} {own_class(module).__name__} {sorted(plain_attributes(module).items())}"
            yield from () if is_library(own_class(module)) else _lines(own_class(module).forward, seen, depth)
    elif isinstance(value, type) or is_library(type(value)):
        yield getattr(value, "__qualname__", type(value).__qualname__)
    else:
        yield type(value).__qualname__
        held = getattr(value, "__dict__", {})
        yield from _lines(getattr_static(type(value), "__call__", None), seen, depth)
        yield from _lines_of_named({name: each for name, each in held.items() if _is_said(each)}, seen, depth)


def _lines_of_function(function: FunctionType, seen: set[int], depth: int) -> Iterator[str]:
    names = function.__code__.co_freevars
    cells = {name: _content(cell) for name, cell in zip(names, function.__closure__ or (), strict=True)}
    if is_library(function):
        yield f"{function.__module__}.{function.__qualname__}"
    else:
        yield from _lines_of_code(function.__code__)
        yield from _lines(function.__defaults__, seen, depth)
        yield from _lines_of_named(function.__kwdefaults__ or {}, seen, depth)
        found = {name: function.__globals__.get(name) for name in _names(function.__code__)}
        yield from _lines_of_named({name: each for name, each in found.items() if _is_said(each)}, seen, depth)
    yield from _lines_of_named({name: each for name, each in cells.items() if _is_said(each)}, seen, depth)


def _lines_of_code(code: CodeType) -> Iterator[str]:
    yield f"{code.co_code.hex()} {code.co_names} {code.co_freevars} {code.co_argcount} {code.co_kwonlyargcount}"
    for each in code.co_consts:
        yield from _lines(each, set(), 0)


def _lines_of_named(values: Mapping[str, Any], seen: set[int], depth: int) -> Iterator[str]:
    for name in sorted(values):
        yield name
        yield from _lines(values[name], seen, depth)


def _names(code: CodeType) -> set[str]:
    """What it looks up among the globals, and the attributes it asks for: bytecode tells them together."""
    inner = [each for each in code.co_consts if isinstance(each, CodeType)]
    return {name for name in code.co_names if not name.startswith("__")}.union(*map(_names, inner))


def _is_said(value: Any) -> bool:
    """Whether it was written as it is. A list or a dictionary may be what a run collects."""
    if isinstance(value, tuple):
        return all(map(_is_said, value))
    said = bool | int | float | str | partial | FunctionType | MethodType | nn.Module
    return isinstance(value, said) or (callable(value) and not isinstance(value, type))


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # it is not filled yet
        return None
