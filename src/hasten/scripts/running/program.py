"""A training script with its options, and how it is run: as Python itself runs it.

`python FILE OPTIONS`, `python -m MODULE OPTIONS`, and a console script of this environment give a program the same
names, arguments and module path here as there. The module of a file is `__main__`, so that its guard holds and its
classes can be pickled for loader workers. Of a notebook, the code cells are run.
"""

from __future__ import annotations

import builtins
import linecache
import multiprocessing
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr
from dataclasses import dataclass
from importlib import import_module
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from importlib.util import find_spec
from io import RawIOBase, TextIOWrapper
from pathlib import Path
from types import ModuleType
from typing import Any

from hasten.errors import Misconfigured
from hasten.facts.formatting import nearest
from hasten.scripts.running.edited_modules import code_of, source_of, use_edited
from hasten.scripts.running.notebook import SUFFIX, is_notebook

SCRIPTS = "console_scripts"
_LAST_BYTES, _LAST_LINES = 4000, 3  # of a script's standard error


@dataclass(frozen=True, kw_only=True, slots=True)
class Program:
    """name: the file as it was written on the command line, the module, or the console script. options: the script's
    own. entry: what a console script calls, such as "package.train:main"."""

    name: str
    options: tuple[str, ...] = ()
    is_module: bool = False
    entry: str = ""

    @property
    def module(self) -> str:
        """Empty for a file."""
        return self.entry_point.module if self.entry else self.name if self.is_module else ""

    @property
    def entry_point(self) -> EntryPoint:
        return EntryPoint(name=self.name, value=self.entry, group=SCRIPTS)

    @property
    def path(self) -> Path:
        """Of the file that is run, absolute. Raises Misconfigured where there is none."""
        path = Path(self.spec().origin or "") if self.module else Path(os.path.abspath(self.name))
        if not path.is_file():
            scripts = [each.name for each in path.parent.glob("*") if each.suffix in (".py", SUFFIX)]
            fix = "give the path of a training script or notebook, or the name of a console script"
            raise Misconfigured("is no file", where=self.name, fix=nearest(path.name, scripts) or fix)
        return path

    @property
    def root(self) -> Path:
        """The folder that its own modules are imported from."""
        if not self.module:
            return self.path.parent
        inner = self.module.count(".") if self.entry else self.spec().name.count(".")
        return self.path.parents[inner + (self.path.name == "__init__.py")]

    @property
    def words(self) -> list[str]:
        """As they follow `python` on a command line."""
        return [*(["-m"] if self.is_module else []), self.name, *self.options]

    def spec(self) -> ModuleSpec:
        """Of the module; nothing is imported. Raises Misconfigured where there is none with a source file."""
        name, *inner = self.module.split(".")
        sys.path.insert(0, os.getcwd())
        try:
            spec = find_spec(name)
        finally:
            sys.path.pop(0)
        while spec is not None and (inner or (self.is_module and spec.submodule_search_locations is not None)):
            name = f"{name}.{inner.pop(0) if inner else '__main__'}"
            spec = PathFinder.find_spec(name, list(spec.submodule_search_locations or ()))
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
    name, options = words[0], tuple(words[1:])
    found = () if os.path.exists(name) or Path(name).suffix else entry_points(group=SCRIPTS, name=name)
    return Program(name=name, options=options, entry=next((each.value for each in found), ""))


def run(program: Program, edited: Mapping[str, str] | None = None) -> None:
    """Run it to its end in this process; what it raises passes, SystemExit included.

    edited: absolute path -> the source that is run in place of the file's own.
    """
    path, edited = str(program.path), edited or {}
    use_edited(edited)
    multiprocessing.set_start_method(None, force=True)  # not the one by which this process was started
    if program.entry:
        _call(program)
        return
    called = path if program.is_module else program.name
    main = _as_main(program, path, called, os.getcwd() if program.is_module else os.path.dirname(path))
    if program.is_module:
        main.__spec__ = program.spec()
        main.__package__ = main.__spec__.parent
        if main.__package__:
            import_module(main.__package__)
    if is_notebook(path):
        source = source_of(path, edited)
        main.__dict__["display"] = print
        linecache.cache[path] = (len(source), None, str(source).splitlines(keepends=True), path)
    exec(code_of(path, edited), main.__dict__)  # noqa: S102  the user's own program, which this command is to run


class _LastBytes(RawIOBase):
    """What is written to it is dropped, but for its end."""

    name, end = "<stderr>", b""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return 2  # where what the script starts writes

    def write(self, data: Any) -> int:
        written = bytes(data)
        self.end = (self.end + written)[-_LAST_BYTES:]
        return len(written)


def run_to_end(program: Program) -> None:
    """As run, without its standard error. Raises Misconfigured for an exit code that says that it has failed; the last
    lines of standard error are in its message."""
    errors = _LastBytes()
    try:
        with redirect_stderr(TextIOWrapper(errors, "utf-8", "backslashreplace", write_through=True)):
            run(program)
    except SystemExit as end:
        if end.code not in (None, 0):
            alone = shlex.join(["python", *program.words])
            fix = f"see why: {alone}  (options of hasten stand before {program.name})"
            code, last = (end.code, "") if isinstance(end.code, int) else (1, str(end.code))
            lines = f"{errors.end.decode(errors='replace')}\n{last}".splitlines()
            said = " ".join([line.strip() for line in lines if line.strip()][-_LAST_LINES:])
            what = f"ended with exit code {code}" + (f": {said}" if said else "")
            raise Misconfigured(what, where=program.name, fix=fix) from end


def _call(program: Program) -> None:
    """As the file of the console script does."""
    path = str(Path(sys.executable).with_name(program.name))
    _as_main(program, path, path, os.path.dirname(path))
    sys.exit(program.entry_point.load()())


def _as_main(program: Program, path: str, called: str, first: str) -> ModuleType:
    """called: sys.argv[0]; first: the folder that Python searches first."""
    sys.argv[:], sys.path[0] = [called, *program.options], first
    if program.module and str(program.root) not in sys.path:
        sys.path.insert(1, str(program.root))
    main = ModuleType("__main__")
    main.__dict__.update(__file__=path, __builtins__=builtins, __loader__=SourceFileLoader("__main__", path))
    sys.modules["__main__"] = main
    return main
