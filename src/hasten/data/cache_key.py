"""What a cache was made of, as one short name: when anything that decides a sample changes, the name does.

The steady part of a data set is walked from its attributes down, and everything found goes into one SHA-256:

| found | what of it counts |
|---|---|
| numbers, text, bytes, None, dates, ranges, patterns, enums | the value |
| a path, as a Path or as text: of a file | name, size, time of last change (ns) |
| … of a folder | those of everything below it |
| arrays, tensors, pictures | type, shape, content; of a file's memory map, the file as above |
| functions and classes of the user's own | bytecode, constants, defaults, closure, and the globals that they name |
| modules of the user's own that this code names or imports | their files, and those of all that they import |
| what such a module holds under a name that this code asks for, as in module.name | its parts, whatever it is |
| functions, classes and modules of an installed package | name, version, and the content of the module's file |
| containers, partials, bound methods, any other object with attributes | type and parts |

Names rather than content for files: to read a hundred gigabytes anew before every run would cost what the cache saves.
What was given up for it: a file that is changed without changing its size, and given its old time of change, is missed.

What cannot be told (an open database, a lock, a generator) is refused with its place, never guessed. A data set, or
any object in it, may say it itself: `cache_key() -> str`, which then stands for the whole object. Too much in the key
costs a rebuild; too little would be a wrong sample, so in doubt it counts.
"""

from __future__ import annotations

import array
import datetime
import decimal
import enum
import fractions
import functools
import hashlib
import logging
import operator
import os
import re
import stat
import sys
import threading
import types
import uuid
from collections import deque, namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.data.cache_key_folders import REMEDY, Listed, lines_below
from hasten.data.cache_key_modules import Modules
from hasten.data.origins import (
    cells_of,
    deciding_members,
    identity_of_installed,
    imports_in,
    names_in,
    slots_of,
    tells_all,
    version_of,
)
from hasten.errors import DataFailed
from hasten.facts.job import describe

DECIDING = ("torch", "numpy", "pillow", "simplejpeg")  # packages that decide what a decoded sample is

_PLAIN = (int, float, complex, bool, bytes, type(None), type(Ellipsis), range, slice)
_PLAIN_OBJECTS = (
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, decimal.Decimal, fractions.Fraction),
    *(uuid.UUID, torch.dtype, torch.device, torch.memory_format, torch.layout, np.dtype),
)
_BUILT_IN = (
    *(types.BuiltinFunctionType, types.WrapperDescriptorType, types.MethodWrapperType, np.ufunc, type(np.mean)),
)
_DESCRIPTORS = (types.MethodDescriptorType, types.GetSetDescriptorType, types.MemberDescriptorType)


@dataclass(frozen=True, slots=True)
class Told:
    """What a data set tells of itself."""

    key: str  # 32 hexadecimal digits
    listed: tuple[Listed, ...]  # the folders whose files all count


def key_of(dataset: Any, schema: int) -> str:
    """32 hexadecimal digits. Raises DataFailed, naming the place, for what cannot be told."""
    return told_by(dataset, schema).key


def told_by(dataset: Any, schema: int) -> Told:
    """The key, and the folders that it was made of. Raises what key_of does."""
    walk = _Walk()
    walk.add("hasten", schema, sys.byteorder, len(dataset))
    for package in DECIDING:
        walk.add(package, version_of(package))
    walk.visit(dataset, type(dataset).__name__)
    return Told(walk.ended()[:32], tuple(walk.listed))


class _Walk:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.listed: list[Listed] = []
        self._seen: dict[int, tuple[int, Any]] = {}  # the objects too: an id is free again when its object is gone
        self._folders: set[tuple[int, int]] = set()  # device and inode of those that are listed already
        self._modules = Modules()

    def ended(self) -> str:
        """Visit what code names in modules, which is known only when all else is visited; then the whole digest."""
        for place, member in self._modules.members():
            self.visit(member, place)
        return self.digest.hexdigest()

    def add(self, *tokens: object) -> None:
        """Values whose repr tells all of them."""
        for token in tokens:
            data = repr(token).encode()
            self.digest.update(b"%d:%b" % (len(data), data))

    def visit(self, value: Any, place: str) -> None:
        kind = type(value)
        if kind in _PLAIN:
            self.add(kind.__name__, value)
            return
        if kind is str or isinstance(value, PurePath):
            self.add(kind.__name__, str(value))
            if value not in _NO_PLACES:
                self._path(str(value), place)
            return
        if kind is not tuple and kind is not frozenset:  # equal ones may be one object in one process, two in another
            if id(value) in self._seen:
                self.add("seen", self._seen[id(value)][0])
                return
            self._seen[id(value)] = (len(self._seen), value)
        _visit_of(kind)(self, value, place)

    # ── values ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def _nothing(self, value: Any, place: str) -> None:
        self.add(type(value).__name__)

    def _plain_object(self, value: Any, place: str) -> None:
        self.add(type(value).__qualname__, value)

    def _sequence(self, value: Any, place: str) -> None:
        if type(value) in (list, tuple):  # there can be millions: nothing is looked up for them
            self.add(type(value).__name__, len(value))
        else:
            self._type_of(value, place)
            self.add(len(value))
            self._attributes(value, place)
        if len(value) > 64 and isinstance(value, list | tuple) and set(map(type, value)) <= {int, float, bool}:
            self.add(list(value))  # as indices are: millions of them, in one go
            return
        for at, item in enumerate(value):
            self.visit(item, f"{place}[{at}]")

    def _mapping(self, value: Any, place: str) -> None:
        self._type_of(value, place)
        self.add(len(value))
        for key, item in value.items():
            self.visit(key, f"{place}, key {describe(key)}")
            self.visit(item, f"{place}[{key!r}]")
        if hasattr(value, "default_factory"):
            self.visit(value.default_factory, f"{place}.default_factory")
        self._attributes(value, place)

    def _set(self, value: Any, place: str) -> None:
        # Its order changes from process to process.
        self.add(type(value).__qualname__, sorted(self._apart(item, f"{place}, in the set") for item in value))

    def _apart(self, value: Any, place: str) -> str:
        inner = _Walk()
        inner.visit(value, place)
        told = inner.ended()
        self.listed += inner.listed
        return told

    def _array(self, value: np.ndarray, place: str) -> None:
        self.add(type(value).__qualname__, value.dtype, value.shape)
        if isinstance(value, np.memmap) and value.mode == "r" and type(value.base).__name__ == "mmap":
            self.add(value.offset, value.strides)
            self._path(str(value.filename), place)
        elif value.dtype.hasobject:
            self._sequence(value.ravel().tolist(), place)
        else:
            self.digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _scalar(self, value: np.generic, place: str) -> None:
        self.add(value.dtype, value.item())

    def _tensor(self, value: Tensor, place: str) -> None:
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        self.add(type(value).__qualname__, value.dtype, tuple(value.shape))
        if value.is_quantized or value.is_meta:
            raise self._unknown(value, place)
        plain = dense.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        self.digest.update(plain.view(torch.uint8).numpy().data)
        self._attributes(value, place)

    def _pattern(self, value: re.Pattern[Any], place: str) -> None:
        self.add("pattern", value.pattern, value.flags)

    def _enum(self, value: enum.Enum, place: str) -> None:
        self._type_of(value, place)
        self.add(value.name)
        self.visit(value.value, place)

    # ── files ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _path(self, path: str, place: str) -> None:
        """Nothing for text that is no path of anything."""
        if not path or len(path) > 4096 or "\0" in path:
            return
        try:
            about = os.stat(path)
        except (OSError, ValueError):
            return
        if not stat.S_ISDIR(about.st_mode):
            self.add("file", about.st_size, about.st_mtime_ns)
        elif (about.st_dev, about.st_ino) not in self._folders:
            self._folders.add((about.st_dev, about.st_ino))
            self.listed.append(Listed(path, place))
            for line in lines_below(path, place):
                self.digest.update(line)

    # ── code ────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _function(self, value: types.FunctionType, place: str) -> None:
        self.add("function", value.__module__, value.__qualname__)
        if self._installed(value.__module__):
            # What it closes over is the user's all the same.
            self.visit(value.__closure__ and tuple(cells_of(value)), f"{place}'s closure")
            return
        self._code(value.__code__)
        self.visit(value.__defaults__, f"{place}'s defaults")
        self.visit(value.__kwdefaults__, f"{place}'s defaults")
        self.visit(value.__closure__ and tuple(cells_of(value)), f"{place}'s closure")
        for name in sorted(names_in(value.__code__, "LOAD_GLOBAL")):
            if name in value.__globals__:
                self.visit(value.__globals__[name], f"{name}, which {place} uses,")
        self._modules.asked_by(value.__code__)
        for name in sorted(imports_in(value.__code__, value.__globals__.get("__package__") or "")):
            self._imported(name, place)
        self._attributes(value, place)

    def _code(self, code: types.CodeType) -> None:
        self.add(code.co_code, code.co_names, code.co_varnames, code.co_freevars, code.co_flags, code.co_argcount)
        for constant in code.co_consts:
            if isinstance(constant, types.CodeType):
                self._code(constant)
            else:
                self._constant(constant)

    def _constant(self, value: Any) -> None:
        """A folder's name in code is mostly no more than a word: "train", or the "/" that a path is split at."""
        if isinstance(value, tuple | frozenset):
            self.add(type(value).__name__, len(value))
            for item in sorted(value, key=repr):
                self._constant(item)
        elif isinstance(value, str):
            self.add("text", value)
            if os.path.isfile(value):
                self._path(value, "a constant")
        else:
            self.visit(value, "a constant")

    def _class(self, value: type, place: str) -> None:
        self.add("class", value.__module__, value.__qualname__)
        if self._installed(value.__module__):
            return
        for base in value.__bases__:
            self.visit(base, f"{place}'s base {base.__name__}")
        for name, member in deciding_members(value):
            self.visit(member, f"{place}.{name}")

    def _module(self, value: types.ModuleType, place: str) -> None:
        self._modules.met(value)
        self._imported(value.__name__, place)

    def _imported(self, module: str, place: str) -> None:
        for name, version, file in self._modules.imported(module):
            self.add("module", name, version)
            if file is not None:
                self._path(file, place)

    def _installed(self, module: str | None) -> bool:
        """Whether code of this module is told by its package's version, which is then counted."""
        identity = identity_of_installed(module or "builtins")
        if identity is not None:
            self.add(identity)
        return identity is not None

    def _built_in(self, value: Any, place: str) -> None:
        owner = getattr(value, "__self__", None)
        self.add("built in", getattr(value, "__module__", None), getattr(value, "__qualname__", value.__name__))
        if owner is not None and not isinstance(owner, types.ModuleType):
            self.visit(owner, f"{place}.__self__")

    def _descriptor(self, value: Any, place: str) -> None:
        self.add("descriptor", value.__objclass__.__qualname__, value.__name__)

    def _named_field(self, value: Any, place: str) -> None:
        self.add("field", value.__reduce__()[1][0])  # its number; the class lists the names

    def _as_pickled(self, value: Any, place: str) -> None:
        self.visit(value.__reduce_ex__(4), place)

    def _method(self, value: types.MethodType, place: str) -> None:
        self.visit(value.__func__, place)
        self.visit(value.__self__, f"{place}.__self__")

    def _partial(self, value: Any, place: str) -> None:
        self.add("partial")
        self.visit(value.func, f"{place}.func")
        self.visit(value.args, f"{place}.args")
        self.visit(value.keywords, f"{place}.keywords")

    def _wrapper(self, value: Any, place: str) -> None:
        self.add(type(value).__name__)
        for name in ("__func__", "fget", "func", "__wrapped__"):
            if getattr(value, name, None) is not None:
                self.visit(getattr(value, name), place)

    # ── objects ─────────────────────────────────────────────────────────────────────────────────────────────────────

    def _object(self, value: Any, place: str) -> None:
        own = getattr(value, "cache_key", None)
        if callable(own):
            told = own()
            if not isinstance(told, str):
                raise DataFailed(f"{place}.cache_key() gave {describe(told)}", fix="let it return text")
            self.add("said by itself", type(value).__module__, type(value).__qualname__, told)
            return
        image = sys.modules.get("PIL.Image")
        if image is not None and isinstance(value, image.Image):
            self.add("picture", value.mode, value.size, value.tobytes(), value.getpalette())
            return
        if not tells_all(value):
            raise self._unknown(value, place)
        self._type_of(value, place)
        self._attributes(value, place)

    def _type_of(self, value: Any, place: str) -> None:
        self.visit(type(value), place)

    def _attributes(self, value: Any, place: str) -> None:
        own = getattr(value, "__dict__", {})
        for name in sorted({*own, *slots_of(type(value))}):
            if name in own or hasattr(value, name):
                self.add(name)
                self.visit(own[name] if name in own else getattr(value, name), f"{place}.{name}")

    def _unknown(self, value: Any, place: str) -> DataFailed:
        return DataFailed(f"{place} is {describe(value)}, and a change of it could not be told", fix=REMEDY)


_NO_PLACES = ("/", ".", "..")  # text that is hardly ever meant as the folder that it names
_LRU = type(functools.lru_cache(lambda: None))
_FIELD = type(vars(namedtuple("_Named", "field"))["field"])
_TOLD_BY_PICKLING = (array.array, operator.itemgetter, operator.attrgetter, operator.methodcaller)
_DECIDING_NOTHING = (logging.Logger, type(threading.Lock()), type(threading.RLock()))

_Visit = Callable[[_Walk, Any, str], None]
_BY_TYPE: tuple[tuple[Any, _Visit], ...] = (
    (_DECIDING_NOTHING, _Walk._nothing),
    (enum.Enum, _Walk._enum),
    (_PLAIN_OBJECTS, _Walk._plain_object),
    (np.generic, _Walk._scalar),
    (np.ndarray, _Walk._array),
    (Tensor, _Walk._tensor),
    (type, _Walk._class),
    (types.ModuleType, _Walk._module),
    (types.FunctionType, _Walk._function),
    (types.MethodType, _Walk._method),
    (_BUILT_IN, _Walk._built_in),
    (_DESCRIPTORS, _Walk._descriptor),
    (_FIELD, _Walk._named_field),
    (functools.partial, _Walk._partial),
    (_TOLD_BY_PICKLING, _Walk._as_pickled),
    ((staticmethod, classmethod, property, functools.cached_property, _LRU), _Walk._wrapper),
    (re.Pattern, _Walk._pattern),
    ((str, bytes, int, float, bytearray), _Walk._plain_object),  # subclasses; the types themselves were met before
    ((list, tuple, deque), _Walk._sequence),
    ((dict, types.MappingProxyType), _Walk._mapping),
    ((set, frozenset), _Walk._set),
    (types.SimpleNamespace, lambda walk, value, place: walk._attributes(value, place)),
)


@functools.cache
def _visit_of(kind: type) -> _Visit:
    return next((visit for kinds, visit in _BY_TYPE if issubclass(kind, kinds)), _Walk._object)
