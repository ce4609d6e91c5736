"""Python files as the checks of this folder read them: by their syntax trees, never by their text.

So a comment or a string cannot trip a check, and an alias cannot hide from it. A check is a function from a source, or
from several, to Faults; none means that the rule holds. tests/test_shape.py applies them to the project, and the tests
of this folder apply them to planted faults.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE = "src/hasten/"


@dataclass(frozen=True)
class Source:
    """One Python file: its path from the repository's root, with forward slashes, and its text."""

    path: str
    text: str

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text, self.path)

    @cached_property
    def nodes(self) -> list[ast.AST]:
        """Of the tree: every check walks over all of them."""
        return list(ast.walk(self.tree))

    @cached_property
    def module(self) -> str:
        """The dotted name: hasten.training.step; a package is named without its __init__."""
        parts = self.path.removeprefix("src/").removesuffix(".py").split("/")
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)

    @property
    def room(self) -> str:
        """The first name under the package: a folder, or a module that stands alone."""
        return self.path.removeprefix(PACKAGE).partition("/")[0].removesuffix(".py")

    @property
    def is_package(self) -> bool:
        return self.path.endswith("/__init__.py")

    @cached_property
    def is_technique(self) -> bool:
        """True for a file that ends with the record TECHNIQUE, which makes it a technique whatever its name."""
        return self.room == "techniques" and any(
            _is_name(target, "TECHNIQUE") for node in self.tree.body for target in _targets(node)
        )

    @cached_property
    def names(self) -> dict[str, str]:
        """What each imported name stands for: {"np": "numpy", "sleep": "time.sleep"}."""
        found: dict[str, str] = {}
        for node in self.nodes:
            if isinstance(node, ast.Import):
                for alias in node.names:
                    first = alias.name.partition(".")[0]
                    found[alias.asname or first] = alias.name if alias.asname else first
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    found[alias.asname or alias.name] = f"{origin(self, node)}.{alias.name}"
        return found


@dataclass(frozen=True)
class Fault:
    source: Source
    line: int
    what: str

    def __str__(self) -> str:
        return f"{self.source.path}:{self.line}: {self.what}"


def sources(*folders: str) -> list[Source]:
    """Every Python file under these folders of the repository, sorted by path; a missing folder has none. The corpus of
    the doctor is data: scripts as other people write them."""
    found = (path.relative_to(REPOSITORY) for folder in folders for path in (REPOSITORY / folder).rglob("*.py"))
    paths = sorted(path for path in found if "corpus" not in path.parts)
    return [Source(path.as_posix(), (REPOSITORY / path).read_text(encoding="utf-8")) for path in paths]


def files_in(*folders: str) -> list[str]:
    """The path of every file under these folders, of any kind, but for what Python caches and what the doctor's tests
    read as data."""
    found = (path.relative_to(REPOSITORY) for folder in folders for path in (REPOSITORY / folder).rglob("*.*"))
    return sorted(path.as_posix() for path in found if not {"corpus", "__pycache__"} & {*path.parts})


def imports(source: Source) -> Iterator[tuple[int, str]]:
    """(line, dotted name) of every import of this package, wherever it stands: in a function, under TYPE_CHECKING, or
    as a string for import_module. A name that is imported from a module is part of the dotted name."""
    for node in source.nodes:
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{origin(source, node)}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Call) and called(source, node) in ("importlib.import_module", "__import__"):
            names = [item.value for item in node.args if isinstance(item, ast.Constant) and isinstance(item.value, str)]
        else:
            continue
        yield from ((node.lineno, name) for name in names if name.split(".")[0] == "hasten")


def called(source: Source, call: ast.Call) -> str:
    """The dotted name of what is called, with imported names resolved; empty for what has no such name."""
    return dotted(source, call.func)


def dotted(source: Source, node: ast.expr) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return ""
    return ".".join([source.names.get(node.id, node.id), *reversed(parts)]).removeprefix("builtins.")


def origin(source: Source, node: ast.ImportFrom) -> str:
    """The module that a from-import takes its names from, relative ones resolved."""
    if not node.level:
        return node.module or ""
    parts = source.module.split(".")
    base = parts[: len(parts) - node.level + source.is_package]
    return ".".join([*base, *([node.module] if node.module else [])])


def _targets(node: ast.stmt) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AnnAssign) else []


def _is_name(node: ast.expr, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name
