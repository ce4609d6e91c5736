"""Modules of the user's own, for the key of a cache (see cache_key.py): their files, and what code asks of them.

`helper.read(index)` runs code of another file, which may open files and use what the job has set in its module, as with
`helper.SIZE = 64`. So a member of a module counts, with all its parts, as soon as any code that counts asks for its
name anywhere: a module can be handed on (`self.backend = helper`), and then no code has both names side by side. Other
members do not count: a module may hold an open file, or what changes with every run, for somebody else.

What was given up: a name that is put together while code runs, as by getattr. And of a module that is imported inside
a function nothing counts but its file, because it is there only once a sample was read: the key would be another then.
"""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

from hasten.data.origins import file_of, identity_of_installed, imports_of, names_in

_ATTRIBUTES = ("LOAD_ATTR", "LOAD_METHOD")  # the second until Python 3.11


class Modules:
    """The modules that one walk meets. Everything is given once."""

    def __init__(self) -> None:
        self._imported: set[str] = set()
        self._met: dict[str, types.ModuleType] = {}
        self._asked: set[str] = set()
        self._given: set[tuple[str, str]] = set()

    def imported(self, module: str) -> Iterator[tuple[str, str | None, str | None]]:
        """A module and those that it imports, one after another: the name, the version of an installed one, and the
        file of one of the user's own, of which alone the imports are followed."""
        waiting = [module]
        while waiting:
            name = waiting.pop()
            if not name or name in self._imported:
                continue
            self._imported.add(name)
            version = identity_of_installed(name)
            file = file_of(name) if version is None else None
            yield name, version, file
            if file is not None:
                waiting += [name.rpartition(".")[0], *sorted(imports_of(file, name))]  # its package is run before it

    def met(self, module: types.ModuleType) -> None:
        """Take in a module in hand."""
        if identity_of_installed(module.__name__) is None:
            self._met[module.__name__] = module

    def asked_by(self, code: types.CodeType) -> None:
        """Take in the names that code asks of anything."""
        self._asked |= names_in(code, *_ATTRIBUTES)

    def members(self) -> Iterator[tuple[str, Any]]:
        """Place and value of what modules hold under a name that is asked for. What is taken in meanwhile counts."""
        while waiting := sorted(self._asked_for() - self._given):
            for module, name in waiting:
                self._given.add((module, name))
                yield f"{module}.{name}", vars(self._met[module])[name]

    def _asked_for(self) -> set[tuple[str, str]]:
        return {
            (module, name)
            for module, held in self._met.items()
            for name in self._asked & vars(held).keys()
            if not name.startswith("__")  # its file and its version, of which the file counts already
        }
