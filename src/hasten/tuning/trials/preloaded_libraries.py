"""Which libraries the process loads that trials are forked from: those that the sources of a job or script import."""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator
from importlib.util import find_spec
from pathlib import Path

from hasten.facts.ranks import launched
from hasten.regular_files import read_regular
from hasten.users_code import is_users_file

_OWN = re.compile(r"^(?:import|from)\s+\.*([\w.]*)(?:\s+import\s+\(?\s*([\w, ]+))?", re.MULTILINE)
_SETS = re.compile(
    r"\benviron\b(?:\[[^\]\n]*\]\s*=(?!=)|\.(?:update|setdefault|pop|clear)\b|\s*\|=)|\b(?:putenv|load_dotenv)\b"
)
"""What changes a variable of the environment."""

LOADED_ONCE = frozenset(
    ("PIL", "numpy", "pandas", "scipy", "skimage", "sklearn", "torch", "torchmetrics", "torchvision")
)
"""Libraries that start no thread, open no device and read no setting when they are imported. They are loaded once, in
the process that arms are forked from; whatever else a job imports, each of its arms loads for itself."""

READ_SETTINGS = frozenset(
    ("accelerate", "datasets", "evaluate", "lightning", "pytorch_lightning", "tokenizers", "transformers")
)
"""As those, but for variables of the environment that they read when they are imported. They are loaded once where no
source sets a variable, which each rank of several would have to itself."""


def libraries_of(job: str) -> list[str]:
    """What the file of a job or script, path/file.py:function, and its own modules import at the begin of a line and
    may be loaded once: dotted names of modules, and "module:name" for what is imported from one, which can be a module,
    or be loaded late. A file that cannot be read has none: what runs it reports what is wrong with it."""
    file = Path(job.rpartition(":")[0])
    sources = dict(_own_sources(file))
    folders = {Path.cwd(), *(folder for module in sources for folder in (module.parent, _root_of(module)))}
    sets_variables = any(map(_SETS.search, sources.values())) or launched().all.size > 1
    shared = LOADED_ONCE if sets_variables else LOADED_ONCE | READ_SETTINGS
    names = dict.fromkeys(name for text in sources.values() for name in _imported(text))
    firsts = {name: re.split("[.:]", name)[0] for name in names}
    harmless = {first for first in firsts.values() if first in shared and _is_library(first, folders)}
    return [name for name, first in firsts.items() if first in harmless]


def statement_of(library: str) -> str:
    """That imports one of libraries_of."""
    module, _, name = library.partition(":")
    return f"from {module} import {name}" if name else f"import {module}"


def _imported(text: str) -> Iterator[str]:
    """At the begin of a line."""
    try:
        statements = ast.parse(text).body
    except (SyntaxError, ValueError):
        return
    for each in statements:
        if isinstance(each, ast.Import):
            yield from (name.name for name in each.names)
        elif isinstance(each, ast.ImportFrom) and each.module and not each.level:
            yield from (f"{each.module}:{name.name}" for name in each.names if name.name != "*")


def _is_library(name: str, folders: Collection[Path]) -> bool:
    """Installed, and not hidden by a module of the same name in one of these folders, from which a script imports."""
    if any(True for folder in folders for _ in _files_of(name, folder)):
        return False
    spec = find_spec(name)
    return spec is not None and not is_users_file(spec.origin or "")


def _own_sources(file: Path) -> Iterator[tuple[Path, str]]:
    """Of a file, and of the modules beside it that it imports, and those import."""
    waiting, seen = [file], set[Path]()
    while waiting:
        module = waiting.pop(0)
        if module in seen:
            continue
        seen.add(module)
        try:
            text = read_regular(module).decode(errors="replace")
        except OSError:
            continue
        yield module, text
        folders = dict.fromkeys((file.parent, module.parent, _root_of(module)))
        waiting += [path for name in _own_names(text) for folder in folders for path in _files_of(name, folder)]


def _own_names(text: str) -> Iterator[str]:
    for module, names in _OWN.findall(text):
        yield module
        yield from (f"{module}.{name.strip()}".strip(".") for name in names.split(",") if name.strip())


def _files_of(name: str, folder: Path) -> Iterator[Path]:
    """Of a module and the packages that it is in."""
    for part in filter(None, name.split(".")):
        folder /= part
        yield from (path for path in (folder.with_suffix(".py"), folder / "__init__.py") if path.is_file())


def _root_of(module: Path) -> Path:
    """The folder that its package is imported from."""
    return next(folder for folder in module.absolute().parents if not (folder / "__init__.py").exists())
