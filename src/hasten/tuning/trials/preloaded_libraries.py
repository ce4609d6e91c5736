"""Which libraries the process loads that trials are forked from: those that the sources of a job or script import."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path

from hasten.facts.ranks import launched
from hasten.regular_files import read_regular
from hasten.users_code import is_users_file

_ENVIRONMENT = frozenset(("environ", "environb", "load_dotenv", "putenv", "unsetenv"))

LOADED_ONCE = frozenset(
    ("PIL", "numpy", "pandas", "scipy", "skimage", "sklearn", "torch", "torchmetrics", "torchvision")
)
"""Libraries that start no thread, open no device and read no setting when they are imported. They are loaded once, in
the process that arms are forked from; whatever else a job imports, each of its arms loads for itself."""

READ_SETTINGS = frozenset(
    ("accelerate", "datasets", "evaluate", "lightning", "pytorch_lightning", "tokenizers", "transformers")
)
"""As those, but for variables of the environment that they read when they are imported, and each other. They are loaded
once where no source may set a variable, which each rank of several would have to itself, and none of their names is one
of the user's own modules."""


def libraries_of(job: str) -> list[str]:
    """What the file of a job or script, path/file.py:function, and its own modules import at the begin of a line and
    may be loaded once: dotted names of modules, and "module:name" for what is imported from one, which can be a module,
    or be loaded late. A file that cannot be read has none: what runs it reports what is wrong with it."""
    file = Path(job.rpartition(":")[0])
    sources = dict(_own_sources(file))
    folders = {Path.cwd(), *(folder for module in sources for folder in (module.parent, _root_of(module)))}
    may_differ = (
        launched().all.size > 1
        or any(map(_may_set_variables, sources.values()))
        or any(_is_own(name, folders) for name in READ_SETTINGS)
    )
    shared = LOADED_ONCE if may_differ else LOADED_ONCE | READ_SETTINGS
    names = dict.fromkeys(name for source in sources.values() for name in _imported(source))
    firsts = {name: re.split("[.:]", name)[0] for name in names}
    installed = {first for first in firsts.values() if first in shared and _spec_of(first)}
    harmless = {first for first in installed if not _is_own(first, folders)}
    return [name for name, first in firsts.items() if first in harmless]


def statement_of(library: str) -> str:
    """That imports one of libraries_of."""
    module, _, name = library.partition(":")
    return f"from {module} import {name}" if name else f"import {module}"


def _imported(source: ast.Module) -> Iterator[str]:
    """At the begin of a line."""
    for each in source.body:
        if isinstance(each, ast.Import):
            yield from (name.name for name in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield from (f"{each.module}:{name.name}" for name in each.names if name.name != "*")


def _may_set_variables(source: ast.Module) -> bool:
    """Whether it uses the environment for anything but reading one variable."""
    nodes = [*ast.walk(source)]
    reads = {id(node) for node in map(_read_by, nodes)}
    return any(_name_of(node) in _ENVIRONMENT and id(node) not in reads for node in nodes)


def _read_by(node: ast.AST) -> ast.AST | None:
    match node:
        case (
            ast.Attribute(value=read, attr="get")
            | ast.Subscript(value=read, ctx=ast.Load())
            | ast.Compare(ops=[ast.In() | ast.NotIn()], comparators=[read])
        ):
            return read
        case _:
            return None


def _name_of(node: ast.AST) -> str:
    match node:
        case ast.Name(id=name) | ast.Attribute(attr=name) | ast.alias(name=name):
            return name
        case _:
            return ""


def _is_own(name: str, folders: Collection[Path]) -> bool:
    """A module of the user's: in one of these folders, from which a script imports, or wherever Python finds it."""
    return any(True for folder in folders for _ in _files_of(name, folder)) or bool(_roots_of(name))


def _roots_of(name: str) -> list[Path]:
    """The folder that Python imports it from, where it is a module of the user's: also one that `pip -e` knows."""
    spec = _spec_of(name.partition(".")[0])
    if spec is None or not spec.origin or not spec.has_location or not is_users_file(spec.origin):
        return []
    return [_root_of(Path(spec.origin))]


def _spec_of(name: str) -> ModuleSpec | None:
    try:
        return find_spec(name) if name else None
    except (ImportError, ValueError):  # of a module without one, as __main__
        return None


def _own_sources(file: Path) -> Iterator[tuple[Path, ast.Module]]:
    """Of a file, and of the user's modules that it imports, and those import."""
    waiting, seen = [file], set[Path]()
    while waiting:
        module = waiting.pop(0)
        if module in seen:
            continue
        seen.add(module)
        try:
            source = ast.parse(read_regular(module))
        except (OSError, SyntaxError, ValueError):
            continue
        yield module, source
        folders = (file.parent, module.parent, _root_of(module))
        for name in _own_names(source):
            places = dict.fromkeys((*folders, *_roots_of(name)))
            waiting += [path for folder in places for path in _files_of(name, folder)]


def _own_names(source: ast.Module) -> Iterator[str]:
    for each in ast.walk(source):
        if isinstance(each, ast.Import):
            yield from (name.name for name in each.names)
        elif isinstance(each, ast.ImportFrom):
            module = each.module or ""
            yield from (f"{module}.{name.name}".strip(".") for name in each.names)


def _files_of(name: str, folder: Path) -> Iterator[Path]:
    """Of a module and the packages that it is in."""
    for part in filter(None, name.split(".")):
        folder /= part
        yield from (path for path in (folder.with_suffix(".py"), folder / "__init__.py") if path.is_file())


def _root_of(module: Path) -> Path:
    """The folder that its package is imported from."""
    return next(folder for folder in module.absolute().parents if not (folder / "__init__.py").exists())
