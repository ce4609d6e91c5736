"""The name of a cache: when something that decides a sample changes, the name changes.

A steady data set is described by its class and its attributes, down through containers and objects:

| found | part of the key |
|---|---|
| numbers, text, bytes, None, dtypes | the value |
| a path, as a Path or as text: of a file | name, size, time of last change (ns) |
| … of a folder | those of every file below it |
| arrays and tensors | dtype, shape, content; of a file's memory map, the file |
| functions, and classes of objects | qualified name and the text of their module; version, of an installed package |
| … a function's defaults and closure | as attributes |
| any other object | what pickle would store of it, as attributes |

`cache_key() -> str` of a data set, or of any object in it, replaces the whole object. What cannot be described (an
open file, a lock, a generator) is refused with its place.

A module that the data set's module imports is not followed: after a change there, raise `Augmented(…, version=2)`.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import linecache
import os
import stat
import sys
import sysconfig
import types
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from hasten.data.order.randomness import is_generator
from hasten.errors import DataFailed, StorageFailed
from hasten.facts.job import describe
from hasten.regular_files import read_regular

DECIDING = ("torch", "numpy", "pillow", "simplejpeg")  # packages that decide what a decoded sample is
REMEDY = "give the data set a method cache_key() -> str whose result changes whenever its samples do"

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))
_VALUES = (int, float, complex, bool, bytes, bytearray, type(None), type(Ellipsis), range, np.dtype, torch.dtype)
_NO_PATHS = ("/", ".", "..")  # text that is hardly ever meant as the folder that it names


@dataclass(frozen=True, slots=True)
class CacheKey:
    text: str  # 32 hexadecimal digits
    folders: tuple[str, ...]  # whose files are all part of it

    def check_outside(self, caches: Path) -> None:
        """Raises StorageFailed when caches would lie in one of the folders: each would change the next run's key."""
        for folder in self.folders:
            if caches.resolve().is_relative_to(Path(folder).resolve()):
                what = f"it lies in the folder {folder}, whose files are part of the cache's key"
                fix = "choose a cache folder outside of it, or let the data set hold only the paths that it reads"
                raise StorageFailed(what, where=str(caches), fix=fix)


def key_of(dataset: Any, schema: int) -> str:
    """32 hexadecimal digits. Raises DataFailed, naming the place, for what cannot be described."""
    return described(dataset, schema).text


def described(dataset: Any, schema: int, version: int = 0) -> CacheKey:
    """version: of what the key does not see, raised by the user. Raises what key_of does."""
    description = _Description()
    description.add(schema, version, sys.byteorder, len(dataset), *((name, version_of(name)) for name in DECIDING))
    description.visit(dataset, type(dataset).__name__)
    return CacheKey(description.digest.hexdigest()[:32], tuple(description.folders))


@functools.cache
def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def text_of_module(name: str | None) -> str | None:
    """A digest of a module's text, or the version of its package; None where the text is not found."""
    top = (name or "builtins").partition(".")[0]
    if top in sys.stdlib_module_names and name != "__main__":
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    file = getattr(sys.modules.get(name or ""), "__file__", None)
    if file is None:
        return None
    if top != "hasten" and file.startswith(_INSTALLED):
        return f"{top} {version_of(top)}"
    try:
        text = read_regular(file)
    except OSError:
        text = "".join(linecache.getlines(file)).encode()
    return hashlib.sha256(text).hexdigest() if text else None


class _Description:
    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.folders = list[str]()
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
            self._path(str(value))
        elif isinstance(value, _VALUES):
            self.add(value)
        elif id(value) in self._seen and not isinstance(value, tuple | frozenset):  # equal ones may be one object
            self.add(self._seen[id(value)][0])
        else:
            self._seen[id(value)] = (len(self._seen), value)
            self._visit_parts(value, place)

    def _visit_parts(self, value: Any, place: str) -> None:
        if callable(own := getattr(value, "cache_key", None)) and not isinstance(value, type):
            self.add(type(value).__module__, own())
        elif isinstance(value, np.ndarray):
            self._array(value, place)
        elif isinstance(value, Tensor):
            plain = value.detach().cpu().to_dense().resolve_conj().resolve_neg().contiguous()
            self.add(value.dtype, tuple(value.shape))
            self.digest.update(plain.reshape(-1).view(torch.uint8).numpy().data)
        elif isinstance(value, type):
            self._code(value, place)
        elif isinstance(value, types.FunctionType):
            self._function(value, place)
        elif type(value) in (list, tuple):
            self._sequence(value, place)
        elif type(value) is dict:
            self.add(len(value))
            for key, item in value.items():
                self.visit(key, f"{place}, key {describe(key)}")
                self.visit(item, f"{place}[{key!r}]")
        elif isinstance(value, set | frozenset):
            self._sequence(sorted(value, key=repr), place)  # its own order changes from process to process
        else:
            self._object(value, place)

    def _sequence(self, value: Sequence[Any], place: str) -> None:
        self.add(len(value))
        if len(value) > 64 and set(map(type, value)) <= {int, float, bool}:
            self.add([*value])  # as indices are: millions of them, in one go
            return
        for number, item in enumerate(value):
            self.visit(item, f"{place}[{number}]")

    def _array(self, value: np.ndarray, place: str) -> None:
        self.add(value.dtype, value.shape)
        if isinstance(value, np.memmap) and value.mode == "r":
            self.add(value.offset, value.strides)
            self._path(str(value.filename))
        else:
            self.digest.update(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _path(self, path: str) -> None:
        """Nothing for text that is no path of anything."""
        try:
            about = os.stat(path)
        except (OSError, ValueError):
            return
        if not stat.S_ISDIR(about.st_mode):
            self.add("file", about.st_size, about.st_mtime_ns)
        elif path not in (*self.folders, *_NO_PATHS):
            self.folders.append(path)
            for name, size, changed in _files_below(path):
                line = f"{len(name)}:{name}:{size}:{changed};"
                self.digest.update(line.encode("utf-8", "surrogateescape"))

    def _code(self, value: Any, place: str) -> None:
        """The text of a whole module rather than of one function: it holds what the function calls, too."""
        text = text_of_module(value.__module__)
        if text is None:
            raise DataFailed(f"{place} is {describe(value)}, whose source code is not found", fix=REMEDY)
        self.add(value.__module__, value.__qualname__, text)
        if isinstance(value, type):
            for base in value.__mro__[1:]:
                self.add(base.__module__, base.__qualname__, text_of_module(base.__module__))

    def _function(self, value: types.FunctionType, place: str) -> None:
        self._code(value, place)
        self.visit(value.__defaults__, f"{place}'s defaults")
        self.visit(value.__kwdefaults__, f"{place}'s defaults")
        for name, cell in zip(value.__code__.co_freevars, value.__closure__ or (), strict=True):
            self.visit(cell.cell_contents, f"{place}'s closure, {name}")

    def _object(self, value: Any, place: str) -> None:
        """By what pickle stores of it: the function that rebuilds it, its arguments, its state, and its items."""
        self._code(type(value), place)
        if isinstance(value, Iterator) or is_generator(value):  # reading changes them
            raise _unknown(value, place)
        reduce = copyreg.dispatch_table.get(type(value))
        try:
            reduced: Any = value.__reduce_ex__(4) if reduce is None else reduce(value)
        except Exception:  # a lock, an open file; and whatever a class of the user's raises
            raise _unknown(value, place) from None
        if isinstance(reduced, str):
            self.add(getattr(value, "__module__", None), reduced)
            return
        rebuild, arguments, *rest = reduced
        self.add(getattr(rebuild, "__qualname__", ""))
        for argument in arguments:
            if argument is not type(value):
                self.visit(argument, place)
        for part in rest:
            self._state(part, place)

    def _state(self, part: Any, place: str) -> None:
        """Attributes by name; the slots of an object come as a second dictionary, its items as an iterator."""
        if isinstance(part, dict):
            for name in sorted(part, key=str):
                self.add(name)
                self.visit(part[name], f"{place}.{name}")
        elif isinstance(part, tuple):
            for each in part:
                self._state(each, place)
        elif part is not None:
            self.visit([*part] if isinstance(part, Iterator) else part, place)


def _unknown(value: Any, place: str) -> DataFailed:
    return DataFailed(f"{place} is {describe(value)}, whose changes cannot be detected", fix=REMEDY)


def _files_below(folder: str) -> Iterator[tuple[str, int, int]]:
    """Relative name, size and time of last change (ns) of every file below a folder, sorted within each folder."""
    for here, folders, files in os.walk(folder, followlinks=True):
        folders.sort()
        for name in sorted(files):
            path = os.path.join(here, name)
            try:
                about = os.stat(path)
            except OSError:
                about = os.lstat(path)  # of a link to nothing
            yield os.path.relpath(path, folder), about.st_size, about.st_mtime_ns
