"""Which libraries the process loads that trials are forked from: those that the sources of a job or script import."""

from __future__ import annotations

import re
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from hasten.regular_files import read_regular

_IMPORTED = re.compile(r"^(?:import|from)\s+(\w[\w.]*)", re.MULTILINE)
_OWN = re.compile(r"^(?:import|from)\s+\.*([\w.]*)(?:\s+import\s+\(?\s*([\w, ]+))?", re.MULTILINE)

LOADED_ONCE = frozenset(
    ("PIL", "numpy", "pandas", "scipy", "skimage", "sklearn", "torch", "torchmetrics", "torchvision")
)
"""Libraries that start no thread, open no device and read no setting when they are imported. They are loaded once, in
the process that arms are forked from; whatever else a job imports, each of its arms loads for itself."""


def libraries_of(job: str) -> list[str]:
    """Dotted names of what the file of a job or script, path/file.py:function, and its own modules import at the begin
    of a line and may be loaded once. A file that cannot be read has none: what runs it reports what is wrong with
    it."""
    names = dict.fromkeys(
        name for text in _own_sources(Path(job.rpartition(":")[0])) for name in _IMPORTED.findall(text)
    )
    firsts = {name: name.partition(".")[0] for name in names}
    return [name for name, first in firsts.items() if first in LOADED_ONCE and find_spec(first) is not None]


def _own_sources(file: Path) -> Iterator[str]:
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
        yield text
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
