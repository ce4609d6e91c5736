"""No file imports a private name of another module or library; ruff refuses to read private attributes (SLF001).

One adapter file for each library may do both: it is named after the library, and its docstring says with which version
it was checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shape.source import Fault, Source, origin


def check_private_names(source: Source) -> Iterator[Fault]:
    library = re.match(r"(torchmetrics|torch|numpy)_", source.path.rpartition("/")[2])
    docstring = ast.get_docstring(source.tree) or ""
    if library is not None and re.search(rf"\b{library[1]} \d+\.\d+", docstring):
        return
    for node in source.nodes:
        for name in filter(_is_private, _imported(source, node)):
            yield Fault(source, node.lineno, f"{name} is private to another module; give it a public door")
        if library is not None and isinstance(node, ast.Attribute) and _is_private(node.attr):
            yield Fault(source, node.lineno, f"reads {node.attr}; say in the docstring with which version")


def _imported(source: Source, node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.ImportFrom):
        yield from (*origin(source, node).split("."), *(alias.name for alias in node.names))
    elif isinstance(node, ast.Import):
        yield from (part for alias in node.names for part in alias.name.split("."))


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))
