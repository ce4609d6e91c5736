"""Imports a file of the user's with other source than it has on disk, which stays unchanged.

Line numbers are those of the file on disk: what a traceback names is what the user finds there.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Mapping, Sequence
from difflib import SequenceMatcher
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from hasten.regular_files import read_regular
from hasten.scripts.edits.source_text import text_of
from hasten.scripts.running.notebook import is_notebook, script_of

_Placed = ast.expr | ast.stmt | ast.excepthandler | ast.arg | ast.keyword | ast.alias | ast.pattern


def use_edited(edited: Mapping[str, str]) -> None:
    """For every import from now on. edited: absolute path -> source."""
    if edited:
        sys.meta_path.insert(0, _EditedFinder(edited))


def source_of(path: str, edited: Mapping[str, str]) -> str | bytes:
    """Bytes of the file where it has no other source: Python reads their encoding itself. Of a notebook, its code."""
    source = edited[path] if path in edited else read_regular(path)
    if is_notebook(path):
        return script_of(source if isinstance(source, str) else source.decode(), path)
    return source


def code_of(path: str, edited: Mapping[str, str]) -> CodeType:
    """Of a module."""
    source = source_of(path, edited)
    if path not in edited or is_notebook(path):
        return compile(source, path, "exec", dont_inherit=True)
    tree, lines = ast.parse(source, path), _users_lines(text_of(read_regular(path)), edited[path])
    for node in ast.walk(tree):
        if isinstance(node, _Placed):
            _move(node, lines)
    return compile(tree, path, "exec", dont_inherit=True)


def _users_lines(before: str, after: str) -> list[int]:
    """For each line of the edited source the one in the user's file, from 1; index 0 is of no line."""
    one, other = before.split("\n"), after.split("\n")
    found = [0]
    for _, begin, end, first, last in SequenceMatcher(None, one, other, autojunk=False).get_opcodes():
        found += [min(begin + place, max(end, begin + 1) - 1, len(one) - 1) + 1 for place in range(last - first)]
    return found


def _move(node: _Placed, lines: Sequence[int]) -> None:
    node.lineno, end = lines[node.lineno], lines[node.end_lineno or node.lineno]
    if end == node.lineno and node.end_col_offset is not None:
        node.end_col_offset = max(node.end_col_offset, node.col_offset)
    node.end_lineno = end


class _EditedFinder:
    def __init__(self, edited: Mapping[str, str]) -> None:
        self._edited = edited

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or spec.origin not in self._edited:
            return None
        spec.loader = _EditedLoader(name, spec.origin, self._edited)
        return spec


class _EditedLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, edited: Mapping[str, str]) -> None:
        super().__init__(name, path)
        self._edited = edited

    def get_code(self, fullname: str) -> CodeType:
        return code_of(self.path, self._edited)
