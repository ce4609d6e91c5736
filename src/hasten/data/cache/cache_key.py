"""The name of a cache: when something that decides a sample changes, the name changes.

A steady data set is described by its class and its attributes, down through containers and objects:

| found | what of it counts |
|---|---|
| numbers, text, bytes, None, ranges, enums, dtypes | the value |
| a path, as a Path or as text: of a file | name, size, time of last change (ns) |
| … of a folder | those of every file below it |
| arrays, tensors, pictures | dtype, shape, content; of a file's memory map, the file |
| functions, and classes of objects | qualified name and the text of their module; version, of an installed package |
| … a function's defaults and closure, a partial's arguments | as attributes |

`cache_key() -> str` of a data set, or of any object in it, stands for the whole object. What cannot be described (an
open file, a lock, a generator) is refused with its place.

What this simple form gave up: a helper module that the data set's module imports is not followed. After a change there,
raise `Augmented(…, version=2)`. And a file that is changed without changing its size, and is given its old time, is
missed: to read a hundred gigabytes before every run would cost what the cache saves.
"""

from __future__ import annotations

import datetime
import enum
import functools
import hashlib
import io
import os
import random
import re
import stat
import sys
import types
import uuid
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from fractions import Fraction
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.data.cache.cache_key_folders import REMEDY, Listed, lines_below
from hasten.data.cache.code_text import text_of_module, version_of
from hasten.data.order.generator_states import is_generator
from hasten.errors import DataFailed
from hasten.facts.job import describe

DECIDING = ("torch", "numpy", "pillow", "simplejpeg")  # packages that decide what a decoded sample is

_VALUES = (
    *(int, float, complex, bool, bytes, bytearray, type(None), type(Ellipsis), range, slice, np.generic, np.dtype),
    *(datetime.date, datetime.time, datetime.timedelta, datetime.tzinfo, Decimal, Fraction, uuid.UUID),
    *(torch.dtype, torch.device, torch.memory_format, torch.layout, re.Pattern),
)
_NO_PLACES = ("/", ".", "..")  # text that is hardly ever meant as the folder that it names
_BUILT_IN = (types.BuiltinFunctionType, types.MethodDescriptorType, types.WrapperDescriptorType, np.ufunc)


@dataclass(frozen=True, slots=True)
class Told:
    """What a data set tells of itself."""

    key: str  # 32 hexadecimal digits
    listed: tuple[Listed, ...]  # the folders whose files all count


def key_of(dataset: Any, schema: int) -> str:
    """32 hexadecimal digits. Raises DataFailed, naming the place, for what cannot be described."""
    return told_by(dataset, schema).key


def told_by(dataset: Any, schema: int, version: int = 0) -> Told:
    """The key, and the folders that it was made of. version: of what the key does not see, raised by the user. Raises
    what key_of does."""
    description = _Description()
    description.add(schema, version, sys.byteorder, len(dataset), *((name, version_of(name)) for name in DECIDING))
    description.visit(dataset, type(dataset).__name__)
    return Told(description.digest.hexdigest()[:32], tuple(description.listed))


class _Description:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.listed = list[Listed]()
        self._seen = dict[int, tuple[int, Any]]()  # the objects too: an id is free again when its object is gone

    def add(self, *tokens: object) -> None:
        """Values whose repr is all of them."""
        for token in tokens:
            data = repr(token).encode()
            self.digest.update(b"%d:%b" % (len(data), data))

    def visit(self, value: Any, place: str) -> None:
        self.add(type(value).__qualname__)
        if isinstance(value, str | PurePath):
            self.add(str(value))
            self._path(str(value), place)
        elif isinstance(value, enum.Enum):
            self._code(type(value), place)
            self.add(value.name)
        elif isinstance(value, _VALUES):
            self.add(value)
        elif id(value) in self._seen and not isinstance(value, tuple | frozenset):  # equal ones may be one object
            self.add(self._seen[id(value)][0])
        else:
            self._seen[id(value)] = (len(self._seen), value)
            self._visit_parts(value, place)

    def _visit_parts(self, value: Any, place: str) -> None:
        if callable(own := getattr(value, "cache_key", None)) and not isinstance(value, type):
            self._said(own(), value, place)
        elif isinstance(value, np.ndarray):
            self._array(value, place)
        elif isinstance(value, Tensor):
            self._tensor(value, place)
        elif _is_picture(value):
            self.add(value.mode, value.size, value.tobytes(), value.getpalette())
        elif isinstance(value, type):
            self._code(value, place)
        elif isinstance(value, types.FunctionType):
            self._code(value, place)
            self.visit(value.__defaults__, f"{place}'s defaults")
            self.visit(value.__kwdefaults__, f"{place}'s defaults")
            self.visit([*_cells_of(value)], f"{place}'s closure")
        elif isinstance(value, types.MethodType):
            self.visit(value.__func__, place)
            self.visit(value.__self__, f"{place}.__self__")
        elif isinstance(value, functools.partial):
            self.visit([value.func, value.args, value.keywords], place)
        elif isinstance(value, _BUILT_IN):
            self.add(getattr(value, "__module__", None), value.__name__)
            self.visit(_owner_of(value), f"{place}.__self__")
        elif isinstance(value, types.ModuleType):
            self.add(value.__name__, text_of_module(value.__name__))
        else:
            self._container(value, place)

    def _container(self, value: Any, place: str) -> None:
        if isinstance(value, Mapping):
            self.add(len(value))
            for key, item in value.items():
                self.visit(key, f"{place}, key {describe(key)}")
                self.visit(item, f"{place}[{key!r}]")
            self.visit(getattr(value, "default_factory", None), f"{place}.default_factory")
        elif isinstance(value, set | frozenset):
            self._set(value, place)
        elif isinstance(value, list | tuple | deque):
            self._sequence(value, place)
        if type(value) not in (dict, list, tuple, set, frozenset, deque):
            self._object(value, place)

    def _sequence(self, value: Any, place: str) -> None:
        self.add(len(value))
        if len(value) > 64 and set(map(type, value)) <= {int, float, bool}:
            self.add([*value])  # as indices are: millions of them, in one go
            return
        for number, item in enumerate(value):
            self.visit(item, f"{place}[{number}]")

    def _set(self, value: Any, place: str) -> None:
        """Its order changes from process to process."""
        digests = list[str]()
        for item in value:
            inner = _Description()
            inner.visit(item, f"{place}, in the set")
            self.listed += inner.listed
            digests.append(inner.digest.hexdigest())
        self.add(sorted(digests))

    def _array(self, value: np.ndarray, place: str) -> None:
        self.add(value.dtype, value.shape)
        if isinstance(value, np.memmap) and value.mode == "r":
            self.add(value.offset, value.strides)
            self._path(str(value.filename), place)
        elif value.dtype.hasobject:
            self._sequence(value.ravel().tolist(), place)
        else:
            self.digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _tensor(self, value: Tensor, place: str) -> None:
        self.add(value.dtype, tuple(value.shape))
        if value.is_quantized or value.is_meta:
            raise _unknown(value, place)
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        plain = dense.cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
        self.digest.update(plain.view(torch.uint8).numpy().data)

    def _path(self, path: str, place: str) -> None:
        """Nothing for text that is no path of anything."""
        if not path or path in _NO_PLACES or len(path) > 4096 or "\0" in path:
            return
        try:
            about = os.stat(path)
        except (OSError, ValueError):
            return
        if not stat.S_ISDIR(about.st_mode):
            self.add("file", about.st_size, about.st_mtime_ns)
        elif path not in (each.path for each in self.listed):
            self.listed.append(Listed(path, place))
            for line in lines_below(path, place):
                self.digest.update(line)

    def _code(self, value: Any, place: str) -> None:
        """The text of a whole module rather than of one function: it holds what the function calls, too."""
        text = text_of_module(value.__module__)
        if text is None:
            raise DataFailed(f"{place} is {describe(value)}, whose source text is not to be found", fix=REMEDY)
        self.add(value.__module__, value.__qualname__, text)
        if isinstance(value, type):
            for base in value.__mro__[1:]:
                self.add(base.__module__, base.__qualname__, text_of_module(base.__module__))

    def _object(self, value: Any, place: str) -> None:
        self._code(type(value), place)
        if not _shows_its_state(value):
            raise _unknown(value, place)
        for name in sorted({*getattr(value, "__dict__", {}), *_slots_of(type(value))}):
            if hasattr(value, name):
                self.add(name)
                self.visit(getattr(value, name), f"{place}.{name}")

    def _said(self, said: Any, value: Any, place: str) -> None:
        if not isinstance(said, str):
            raise DataFailed(f"{place}.cache_key() gave {describe(said)}", fix="let it return text")
        self.add(type(value).__module__, said)


def _unknown(value: Any, place: str) -> DataFailed:
    return DataFailed(f"{place} is {describe(value)}, and a change of it could not be seen", fix=REMEDY)


def _is_picture(value: Any) -> bool:
    image = sys.modules.get("PIL.Image")
    return image is not None and isinstance(value, image.Image)


def _cells_of(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # it has no value yet
            yield None


def _slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        yield from (
            name
            for name in ((slots,) if isinstance(slots, str) else slots)
            if not (name.startswith("__") or name == "__weakref__")
        )


def _owner_of(built_in: Any) -> Any:
    owner = getattr(built_in, "__self__", None)
    return None if isinstance(owner, types.ModuleType) else owner


def _shows_its_state(value: Any) -> bool:
    """Whether attributes and items are all of it: not of what Python cannot copy, such as a lock, and not of files,
    iterators and generators."""
    if isinstance(value, io.IOBase | Iterator | random.Random) or is_generator(value):
        return False
    try:
        value.__reduce_ex__(4)
    except TypeError:
        return False
    return True
