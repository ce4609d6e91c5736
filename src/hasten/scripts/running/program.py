"""A training script with its options, and how it is run: as Python itself runs it.

`python FILE OPTIONS` and `python -m MODULE OPTIONS` give a program the same names, arguments and module path here as
there. The program's module is `__main__`, so that its guard holds and its classes can be pickled for loader workers.
"""

from __future__ import annotations

import builtins
import multiprocessing
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType

from hasten.errors import Misconfigured
from hasten.scripts.running.edited_modules import source_of, use_edited


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """name: the file as it was written on the command line, or the module. options: the script's own."""

    name: str
    options: tuple[str, ...] = ()
    is_module: bool = False

    @property
    def path(self) -> Path:
        """Of the file that becomes __main__, absolute. Raises Misconfigured where there is none."""
        path = Path(self.spec().origin or "") if self.is_module else Path(os.path.abspath(self.name))
        if not path.is_file():
            raise Misconfigured("is no file", where=self.name, fix="give the path of a training script")
        return path

    @property
    def words(self) -> list[str]:
        """As they follow `python` on a command line."""
        return [*(["-m"] if self.is_module else []), self.name, *self.options]

    def spec(self) -> ModuleSpec:
        """Of the module, whose parents are imported. Raises Misconfigured where there is none with a source file."""
        sys.path.insert(0, os.getcwd())
        try:
            spec = find_spec(self.name)
            if spec is not None and spec.submodule_search_locations is not None:
                spec = find_spec(f"{self.name}.__main__")
        except ImportError as error:
            raise Misconfigured(f"cannot be imported: {error}", where=self.name) from error
        finally:
            sys.path.pop(0)
        if spec is None or spec.origin is None:
            fix = "give a module that Python finds from this folder, or the path of a file"
            raise Misconfigured("is no module with a source file", where=self.name, fix=fix)
        return spec


def program_of(words: Sequence[str]) -> Program:
    """By what follows `python` on a command line. Raises Misconfigured where that is nothing."""
    if words[:1] == ["-m"] and len(words) > 1:
        return Program(name=words[1], options=tuple(words[2:]), is_module=True)
    if not words:
        raise Misconfigured("no script is given", fix="name a file, or -m and a module")
    return Program(name=words[0], options=tuple(words[1:]))


def run(program: Program, edited: Mapping[str, str] | None = None) -> None:
    """Run it to its end in this process; what it raises passes, SystemExit included.

    edited: absolute path -> the source that is run in place of the file's own.
    """
    path = str(program.path)
    edited = edited or {}
    use_edited(edited)
    multiprocessing.set_start_method(None, force=True)  # not the one by which this process was started
    sys.argv[:] = [path if program.is_module else program.name, *program.options]
    sys.path[0] = os.getcwd() if program.is_module else os.path.dirname(path)
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins, __loader__=SourceFileLoader("__main__", path))
    if program.is_module:
        main.__spec__ = program.spec()
        main.__package__ = main.__spec__.parent
    sys.modules["__main__"] = main
    code = compile(source_of(path, edited), path, "exec", dont_inherit=True)
    exec(code, main.__dict__)  # noqa: S102  the user's own program, which this command is to run
