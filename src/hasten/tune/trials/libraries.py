"""Which well-known libraries a job's file imports, so that they are loaded once and not by every arm.

A process can be copied safely while it runs one thread. These libraries are known to start none, to open no device and
to read no setting when they are imported; whatever else a job imports, each of its arms loads for itself.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

LOADED_ONCE = frozenset({"PIL", "numpy", "pandas", "scipy", "skimage", "sklearn", "torch", "torchmetrics"})


def libraries_of(job: str) -> list[str]:
    """Dotted names of what the file of a job, path/file.py:function, imports on its top level and may be loaded once.

    A file that cannot be read or parsed gives none: whoever builds the job will say what is wrong with it.
    """
    path = job.rpartition(":")[0]
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError):
        return []
    names = (name for node in tree.body for name in _imported(node))
    return [name for name in dict.fromkeys(names) if _may_be_loaded(name)]


def _imported(node: ast.stmt) -> Iterator[str]:
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom) and node.module is not None and not node.level:
        yield node.module


def _may_be_loaded(name: str) -> bool:
    first = name.partition(".")[0]
    return first in LOADED_ONCE and find_spec(first) is not None
