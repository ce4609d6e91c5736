"""What objects, code, packages and folders tell of themselves, for the key of a cache (see cache_key.py)."""

from __future__ import annotations

import dis
import functools
import hashlib
import importlib.util
import os
import sys
import sysconfig
import types
from collections.abc import Iterator
from importlib import metadata
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

_INSTALLED = tuple(sysconfig.get_path(name) for name in ("stdlib", "platstdlib", "purelib", "platlib"))


def tells_all(value: Any) -> bool:
    """Whether the attributes of an object are all of it: false for what keeps its state in C."""
    kind = type(value)
    if any(_written_in_c(base) for base in kind.__mro__ if base is not object):
        return False
    if any(
        getattr(kind, name) is not getattr(object, name) for name in ("__reduce__", "__reduce_ex__", "__getstate__")
    ):
        return True  # it says how it is pickled; what it holds that cannot be told is met among its attributes
    try:
        value.__reduce_ex__(2)  # compares the size of the object with that of its attributes
    except TypeError:
        return False
    return True


def _written_in_c(kind: type) -> bool:
    """Such a class has methods in C of its own, or lacks the mark of classes that are made while a program runs."""
    in_c = (types.MethodDescriptorType, types.WrapperDescriptorType)
    own = (member for member in vars(kind).values() if isinstance(member, in_c))
    return not kind.__flags__ & _MADE_WHILE_RUNNING or any(member.__objclass__ is kind for member in own)


_MADE_WHILE_RUNNING = 1 << 9  # Py_TPFLAGS_HEAPTYPE: what a class statement makes, and ever more types written in C


def deciding_members(kind: type) -> list[tuple[str, Any]]:
    """What a class holds of its own that may decide what its objects do, by name."""
    return [(name, member) for name, member in sorted(vars(kind).items()) if name not in _NOT_CODE]


_NOT_CODE = frozenset(  # members of a class that decide no sample, or are told by the attributes of an object
    """
    __doc__ __module__ __dict__ __weakref__ __annotations__ __annotate__ __annotate_func__ __annotations_cache__
    __init__ __post_init__ __repr__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __setattr__ __delattr__
    __replace__ __getstate__ __setstate__ __reduce__ __reduce_ex__ __copy__ __deepcopy__ __del__ __sizeof__
    __dataclass_fields__ __dataclass_params__ __match_args__ __slots__ __parameters__ __orig_bases__ __qualname__
    __firstlineno__ __static_attributes__ __abstractmethods__ _abc_impl __type_params__ __classcell__
    """.split()  # noqa: SIM905  one string is a paragraph, forty are a column
)


def slots_of(kind: type) -> Iterator[str]:
    for base in kind.__mro__:
        slots = vars(base).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__"):
                yield (
                    f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not name.endswith("__") else name
                )


def cells_of(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:
            yield None  # not filled yet


def names_in(code: types.CodeType, *operations: str) -> set[str]:
    """What a function's code, and that of the functions in it, loads by name."""
    found = {one.argval for one in dis.get_instructions(code) if one.opname in operations}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= names_in(constant, *operations)
    return found


def imports_in(code: types.CodeType, package: str) -> set[str]:
    """Modules that code, and the functions in it, import, by their whole names; what is imported from a package may be
    a module in it, so those names are among them too. package: of the module that the code stands in."""
    found = set[str]()
    steps = [one for one in dis.get_instructions(code) if one.opname != "EXTENDED_ARG"]
    for at, one in enumerate(steps):
        if one.opname != "IMPORT_NAME":
            continue
        level, names = steps[at - 2].argval, steps[at - 1].argval  # what the interpreter is given with the name
        try:
            module = importlib.util.resolve_name("." * level + one.argval, package)
        except ImportError:
            continue  # beyond the topmost package: it cannot be imported either
        found |= {module, *(f"{module}.{name}" for name in names or () if name != "*")}
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= imports_in(constant, package)
    return found


def imports_of(file: str, module: str) -> set[str]:
    """The same of a module's whole file; nothing of one that is no Python."""
    if not file.endswith(".py"):
        return set()
    try:
        with open(file, "rb") as opened:
            code = compile(opened.read(), file, "exec", dont_inherit=True)
    except (OSError, SyntaxError, ValueError):
        return set()
    is_package = os.path.basename(file) == "__init__.py"
    return imports_in(code, module if is_package else module.rpartition(".")[0])


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one; a link in a circle, which the system refuses to follow, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def entries_below(folder: str) -> Iterator[tuple[str, int, int]]:
    """Relative name, size and time of last change (ns) of every file below a folder, sorted within each folder."""
    waiting, met = [folder], set[tuple[int, int]]()
    while waiting:
        here = waiting.pop()
        about = os.stat(here)
        if (about.st_dev, about.st_ino) in met:
            continue  # a link back
        met.add((about.st_dev, about.st_ino))
        with os.scandir(here) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            if is_folder(entry):
                waiting.append(entry.path)
                continue
            try:
                about = entry.stat()
            except OSError:
                about = entry.stat(follow_symlinks=False)  # a link to nothing, or to where nobody may look
            yield os.path.relpath(entry.path, folder), about.st_size, about.st_mtime_ns


@functools.cache
def version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@functools.cache
def identity_of_installed(module: str) -> str | None:
    """What stands for the code of a module that is not the user's own: version and, outside Python's own library, the
    digest of its file, since a package can be installed anew under the same version. None for the user's own."""
    top = module.partition(".")[0]
    if top in sys.stdlib_module_names and module != "__main__":
        return f"python {sys.version_info.major}.{sys.version_info.minor}"
    file = file_of(module) or file_of(top)  # a module that another one made in memory has none
    if file is None or (top != "hasten" and not file.startswith(_INSTALLED)):
        return None
    with open(file, "rb") as opened:
        return f"{top} {version_of(top)} {hashlib.file_digest(opened, 'sha256').hexdigest()}"


def file_of(module: str) -> str | None:
    loaded = sys.modules.get(module)
    if loaded is not None:
        return getattr(loaded, "__file__", None)
    spec = _spec_of(module)
    return spec.origin if spec is not None and spec.has_location else None


def _spec_of(module: str) -> ModuleSpec | None:
    """Where a module is, without importing the packages that it lies in."""
    above, _, _ = module.rpartition(".")
    try:
        if not above:
            return importlib.util.find_spec(module)
        loaded = sys.modules.get(above)
        spec = None if loaded is not None else _spec_of(above)
        places = getattr(loaded, "__path__", None) or (spec and spec.submodule_search_locations)
        return PathFinder.find_spec(module, [*places]) if places else None
    except (ImportError, ValueError):
        return None
