"""A copy of the user's folder, in which a trial runs: it may write there what it likes, and nothing of it is kept.

Small files are copied. A large file is a symbolic link to the user's own, and so is a folder of very many files without
a source among them, as data sets are. Beside the copy, and beside the folders that it is in, are links to all that lies
beside the user's: a script that reads ../data finds it. So are links to the data that the script prepares where they
are missing (prepared_data.py). write_guard.py keeps what is linked from being written to.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Any

from hasten.checkpoint.files import copy_file, link_to, make_building_folder, make_folder, replace_file
from hasten.errors import Misconfigured, PlanError
from hasten.facts.scripts.seen import PreparedData
from hasten.scripts.running.program import Program
from hasten.scripts.trials.prepared_data import link_prepared
from hasten.scripts.trials.write_guard import guard_writes
from hasten.tuning.trials.trial_process import SHOWS_NOWHERE
from hasten.users_code import is_users_file

LARGE_BYTES = 1 << 20  # of a file that is linked
MANY_FILES = 1000  # of a folder that is linked
MOST_FILES = 50_000  # and folders, of a folder that is copied
LEVELS = 3  # folders above, whose other files are linked
_LINKED = frozenset({".git", ".hg", "node_modules"})
LEFT_OUT = frozenset({"__pycache__"})
_PATHS = frozenset({"file", "dataset_file"})  # keys of the tables of facts.scripts.seen
_LOGS_NOWHERE = {"WANDB_MODE": "disabled", "COMET_MODE": "DISABLED", "MLFLOW_TRACKING_URI": "file:mlruns"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Scratch:
    """place: a folder of the trial's own, which holds each copy at its whole path. roots: folder of the user's -> its
    copy. program: as it runs there; folder: in which. prepared: the folder of data that all trials share; "" for none.
    edited: file of the copy -> its bytes."""

    place: Path
    roots: Mapping[Path, Path]
    program: Program
    folder: Path
    prepared: str = ""
    edited: dict[Path, bytes] = field(default_factory=dict[Path, bytes])

    def path(self, users: str) -> Path:
        """Where a file of the user's lies in the copy; itself where it is outside."""
        for root, copy in self.roots.items():
            if Path(users).is_relative_to(root):
                return copy / Path(users).relative_to(root)
        return Path(users)

    def import_path(self, users: str) -> str:
        """Of a file or folder that Python imports from: an environment within the user's folder is no part of it."""
        return str(self.path(users)) if users and is_users_file(users) else users

    def users_path(self, path: str) -> str:
        """Of a file in the copy, or linked beside it, the user's own."""
        if not Path(path).is_relative_to(self.place):
            return path
        return str(Path(self.place.anchor) / Path(path).relative_to(self.place))

    def edit(self, users: str, data: bytes) -> None:
        """Give a file of the copy other bytes. users: the user's own. Raises PlanError where there is no copy of it."""
        copy = self.path(users)
        if not Path(os.path.realpath(copy.parent)).is_relative_to(os.path.realpath(self.place)):
            fix = "run hasten in the folder that holds it"
            raise PlanError("lies outside of the folder that is copied for a trial", where=users, fix=fix)
        replace_file(copy, data)
        self.edited[copy] = data

    def enter(self) -> None:
        """From now on this process is in the copy, and imports from there; nothing of the user's is written to, and
        nothing is sent to a service that collects logs."""
        sys.path[:] = map(self.import_path, sys.path)
        sys.meta_path.insert(0, _CopyFinder(self))
        os.environ.update(_LOGS_NOWHERE | SHOWS_NOWHERE)
        os.chdir(self.folder)
        guard_writes(self.place.parent, [*self.roots, *([Path(self.prepared)] if self.prepared else [])])


class _CopyFinder:
    """Finds in the copy what other finders find in the user's folder: that of a project which `pip install -e` has
    installed knows its files by their whole paths."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch = scratch

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        path = None if path is None else [*map(self._scratch.import_path, path)]
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            if (spec := finder.find_spec(name, path, target)) is not None:
                return self._in_copy(spec)
        return None

    def _in_copy(self, spec: ModuleSpec) -> ModuleSpec:
        if not spec.has_location or spec.origin is None:
            return spec
        file = self._scratch.import_path(spec.origin)
        return spec if file == spec.origin else spec_from_file_location(spec.name, file) or spec


def with_users_paths(value: Any, scratch: Scratch) -> Any:
    """A table whose files are the user's own and not their copies."""
    match value:
        case dict():
            table: dict[str, Any] = value
            return {
                name: scratch.users_path(each) if name in _PATHS else with_users_paths(each, scratch)
                for name, each in table.items()
            }
        case list() | tuple():
            return [with_users_paths(each, scratch) for each in value]
        case _:
            return value


def copy_place(folder: str) -> Path:
    """Under which every copied file has its whole path. folder: of the trial."""
    return Path(folder, "copy")


def roots_of(program: Program, folder: Path) -> tuple[Path, ...]:
    """The folder that the script runs in, and that of its own modules where it lies elsewhere."""
    script = program.root
    if script.is_relative_to(folder):
        return (folder,)
    return (script,) if folder.is_relative_to(script) else (folder, script)


def scratch_copy(program: Program, folder: Path, place: Path, prepared: PreparedData | None = None) -> Scratch:
    """Raises Misconfigured where there is too much to copy."""
    copies = {root: place / root.relative_to(root.anchor) for root in roots_of(program, folder)}
    for root, copy in copies.items():
        make_folder(copy)
        for source in _entries(root):
            _put(source, copy / source.relative_to(root))
    for root, copy in copies.items():
        _link_beside(root, copy)
    if prepared is not None:
        link_prepared(prepared, place)
    shared = "" if prepared is None else prepared.folder
    scratch = Scratch(place=place, roots=copies, program=program, folder=folder, prepared=shared)
    here, name = scratch.path(str(folder)), program.name
    if not program.module:
        name = os.path.relpath(scratch.path(str(program.path)), here)
    return replace(scratch, program=replace(program, name=name), folder=here)


def large_files(program: Program, folder: Path, prepared: PreparedData | None = None) -> Mapping[Path, tuple[int, int]]:
    """Files of the user's, and of prepared data, that a copy has as links -> their size and time. Raises Misconfigured
    as scratch_copy does."""
    found = [path for root in roots_of(program, folder) for path in _entries(root)]
    if prepared is not None:
        found += Path(prepared.folder).rglob("*")
    return {path: _state(path) for path in found if path.is_file() and _state(path)[0] > LARGE_BYTES}


def check_unchanged(files: Mapping[Path, tuple[int, int]]) -> None:
    """files: of large_files. Raises Misconfigured. Libraries that write in C get past the guard."""
    for path, before in files.items():
        if _state(path) != before:
            what = "has changed since the trials began: the script, or another program, has written to it"
            fix = "give the script another path to write to, or move this file out of the folder"
            raise Misconfigured(what, where=str(path), fix=fix)


def _state(path: Path) -> tuple[int, int]:
    """Zero of a file that is not there."""
    try:
        found = path.stat()
    except OSError:
        return 0, 0
    return found.st_size, found.st_mtime_ns


def _entries(root: Path) -> Iterator[Path]:
    """Everything that is put into a copy, a folder before what is in it. Raises Misconfigured for too much."""
    count = 0
    for path, folders, files in os.walk(root):
        linked = [name for name in folders if _is_linked(Path(path, name))]
        folders[:] = sorted(name for name in folders if name not in linked and name not in LEFT_OUT)
        for name in (*folders, *linked, *files):
            count += 1
            if count > MOST_FILES:
                what = f"holds more than {MOST_FILES:,} files, so it is not copied for every trial"
                raise Misconfigured(what, where=str(root), fix="run hasten in the folder of the project alone")
            yield Path(path, name)


def _link_beside(root: Path, copy: Path) -> None:
    """What lies beside the user's folder, and beside the folders that it is in."""
    for users, here in list(zip(root.parents, copy.parents, strict=False))[:LEVELS]:
        try:
            names = os.listdir(users)
        except PermissionError:
            return
        for name in names if len(names) <= MANY_FILES else []:
            if not os.path.lexists(here / name):
                link_to(users / name, here / name)


def _is_linked(folder: Path) -> bool:
    if folder.is_symlink() or folder.name in _LINKED or (folder / "pyvenv.cfg").exists():
        return True
    names = os.listdir(folder)
    return len(names) > MANY_FILES and not any(name.endswith(".py") for name in names)


def _put(source: Path, target: Path) -> None:
    if source.is_symlink() or (source.is_dir() and _is_linked(source)):
        link_to(source.resolve(), target)
    elif source.is_dir():
        make_building_folder(target)
    elif source.is_file() and source.stat().st_size <= LARGE_BYTES:
        copy_file(source, target)
    elif source.is_file():
        link_to(source, target)
