"""No file reads a private name of another object, module or library.

Private names of the standard library that its documentation describes are exempt, and so is one adapter file for each
library: it is named after the library and its docstring says with which version it was checked.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from shape.source import Fault, Source, called, dotted, origin

DOCUMENTED = {"os._exit", "sys._current_frames"}
DOCUMENTED_METHODS = {"_replace", "_asdict", "_fields", "_make"}  # of named tuples
READ_BY_NAME = ("getattr", "setattr", "delattr", "hasattr")


def check_private_names(source: Source) -> Iterator[Fault]:
    """`x._name` is read where `x` is self or cls, or where the file itself defines `_name`."""
    if _is_adapter(source):
        return
    own = set(_defined(source.tree))
    for node in source.nodes:
        for name in _read(source, node):
            if _is_private(name) and name not in own and name not in DOCUMENTED_METHODS:
                yield Fault(source, node.lineno, f"{name} is private to another object; give it a public door")


def _read(source: Source, node: ast.AST) -> Iterator[str]:
    """The names of attributes that are read, and all names that are imported."""
    if isinstance(node, ast.Attribute):
        of_self = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
        if not of_self and dotted(source, node) not in DOCUMENTED:
            yield node.attr
    elif isinstance(node, ast.ImportFrom):
        yield from (*origin(source, node).split("."), *(alias.name for alias in node.names))
    elif isinstance(node, ast.Import):
        yield from (part for alias in node.names for part in alias.name.split("."))
    elif isinstance(node, ast.Call) and called(source, node) in READ_BY_NAME:
        yield from (
            each.value for each in node.args[1:2] if isinstance(each, ast.Constant) and isinstance(each.value, str)
        )


def _is_private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def _defined(tree: ast.Module) -> Iterator[str]:
    """Functions and classes, variables and fields, and attributes that are set on self or cls."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                yield name
            case ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                yield name


def _is_adapter(source: Source) -> bool:
    library = re.match(r"(torchmetrics|torch|numpy)_", source.path.rpartition("/")[2])
    docstring = ast.get_docstring(source.tree) or ""
    return library is not None and re.search(rf"\b{library[1]} \d+\.\d+", docstring) is not None
