"""Imports a file of the user's with other source than it has on disk, which stays unchanged."""

from __future__ import annotations

import linecache
import sys
from collections.abc import Mapping, Sequence
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from types import CodeType, ModuleType

from hasten.regular_files import read_regular
from hasten.scripts.running.notebook import is_notebook, script_of


def use_edited(edited: Mapping[str, str]) -> None:
    """For every import from now on, and in tracebacks. edited: absolute path -> source."""
    if not edited:
        return
    sys.meta_path.insert(0, _EditedFinder(edited))
    for path, text in edited.items():
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)


def source_of(path: str, edited: Mapping[str, str]) -> str | bytes:
    """Bytes of the file where it has no other source: Python reads their encoding itself. Of a notebook, its code."""
    source = edited[path] if path in edited else read_regular(path)
    if is_notebook(path):
        return script_of(source if isinstance(source, str) else source.decode(), path)
    return source


class _EditedFinder:
    def __init__(self, edited: Mapping[str, str]) -> None:
        self._edited = edited

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(name, path, target)
        if spec is None or spec.origin is None or spec.origin not in self._edited:
            return None
        spec.loader = _EditedLoader(name, spec.origin, self._edited[spec.origin])
        return spec


class _EditedLoader(SourceFileLoader):
    def __init__(self, name: str, path: str, text: str) -> None:
        super().__init__(name, path)
        self._text = text

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._text, self.path, "exec", dont_inherit=True)
