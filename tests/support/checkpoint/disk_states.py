"""Every state that a disk may be in after a power cut, from the log of what was done to it.

The model is the weakest that a program may rely on, weaker than any journalling file system:

* A file is a row of writes. What fsync of the file has forced is there. Of every other write nothing is there, or its
  first half, or all; independently of the others, so a later one may be there and an earlier one not, which leaves a
  hole of zeros, as on a disk that orders nothing.
* A folder is a table of names. What fsync of the folder has forced is there. Of every other change to it (a file or
  folder made, renamed, removed) nothing is there, or all; again independently of the others. A renaming is one change:
  it goes from one name to the other or stays. Forcing a file does not force its name, nor does forcing a folder force
  what is in its files or in folders below it.
* A cut can come between any two operations, and inside one: half an operation is among the states of its outcome.

`outcomes` builds each state after each operation in a real folder, lets a program look for its checkpoint there, and
compares: before a save has returned, what it saves or the one before it may be found; from then on, only what it saved.
The log says so by `Began` and `Saved`, which the program that is watched puts between its operations.
"""

from __future__ import annotations

import itertools
import os
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from support.checkpoint.file_faults import Operation

# A file's content, or the names in a folder with what is behind each.
State = Any  # bytes | tuple[tuple[str, State], ...]


@dataclass(frozen=True)
class Began:
    """The program is about to save the checkpoint of this step."""

    step: int


@dataclass(frozen=True)
class Saved:
    """The program was told that the checkpoint of this step is safe."""

    step: int


@dataclass(frozen=True)
class Outcome:
    """state: of the disk. after: how many entries of the log had been done. wrong: empty where all is well."""

    state: State
    after: int
    wrong: str


@dataclass
class _File:
    forced: bytes = b""
    pending: list[tuple[int, bytes]] = field(default_factory=list)  # place, data
    length: int = 0  # as programs see it

    def force(self) -> None:
        self.forced, self.pending = self._with([2] * len(self.pending)), []

    def states(self) -> Iterator[bytes]:
        yield from dict.fromkeys(map(self._with, itertools.product((2, 1, 0), repeat=len(self.pending))))

    def _with(self, halves: Iterable[int]) -> bytes:
        """The content when so many halves of each pending write have reached the disk."""
        content = bytearray(self.forced)
        for (place, data), count in zip(self.pending, halves, strict=True):
            piece = data[: len(data) * count // 2]
            if piece:
                content += bytes(max(place - len(content), 0))
                content[place : place + len(piece)] = piece
        return bytes(content)


@dataclass
class _Folder:
    """Names stand for a _File or _Folder. pending: the name that goes and the one that comes, each where there is one,
    with what is behind it."""

    forced: dict[str, _File | _Folder] = field(default_factory=dict)
    pending: list[tuple[str, str, _File | _Folder]] = field(default_factory=list)
    now: dict[str, _File | _Folder] = field(default_factory=dict)  # as programs see it

    def change(self, goes: str, comes: str, node: _File | _Folder) -> None:
        self.pending.append((goes, comes, node))
        self.now = self._with(self.now, [self.pending[-1]])

    def force(self) -> None:
        self.forced, self.pending = self._with(self.forced, self.pending), []

    def states(self) -> Iterator[State]:
        seen = set[tuple[tuple[str, int], ...]]()
        for chosen in itertools.product((True, False), repeat=len(self.pending)):
            names = self._with(self.forced, itertools.compress(self.pending, chosen))
            known = tuple(sorted((name, id(node)) for name, node in names.items()))
            if known not in seen:
                seen.add(known)
                ordered = sorted(names)
                for below in itertools.product(*(names[name].states() for name in ordered)):
                    yield tuple(zip(ordered, below, strict=True))

    @staticmethod
    def _with(names: dict[str, Any], changes: Iterable[tuple[str, str, Any]]) -> dict[str, Any]:
        names = dict(names)
        for goes, comes, node in changes:
            names.pop(goes, None)
            if comes:
                names[comes] = node
        return names


class Disk:
    """A folder, and what was done in it since it was in a state that was safe."""

    def __init__(self, root: Path, start: State = ()) -> None:
        self._root, self._top = root, _forced(start)

    def do(self, operation: Operation) -> None:
        path = operation.path
        match operation.name:
            case "fsync":
                self._node(path).force()
            case "write":
                file = self._node(path)
                file.pending.append((file.length, operation.data))
                file.length += len(operation.data)
            case "mkdir" if self._is_refused(path):
                pass
            case "open" | "mkdir":
                made = _File() if operation.name == "open" else _Folder()
                self._parent(path).change("", os.path.basename(path), made)
            case "rename" | "replace":
                parent = self._parent(path)
                assert parent is self._parent(operation.target)
                parent.change(os.path.basename(path), os.path.basename(operation.target), self._node(path))
            case "unlink" | "rmdir":
                self._parent(path).change(os.path.basename(path), "", self._node(path))
            case other:
                raise NotImplementedError(other)

    def states(self) -> Iterator[State]:
        """Each that a power cut may leave, once; of the folder that all was done in."""
        yield from self._top.states()

    def _is_refused(self, path: str) -> bool:
        """Path.mkdir asks for a folder that is there, and for one whose parent is not, and goes on."""
        try:
            return os.path.basename(path) in self._parent(path).now
        except KeyError:
            return True

    def _node(self, path: str) -> Any:
        node: Any = self._top
        for name in Path(path).relative_to(self._root).parts:
            node = node.now[name]
        return node

    def _parent(self, path: str) -> _Folder:
        return self._node(os.path.dirname(path))


def _forced(state: State) -> Any:
    if isinstance(state, bytes):
        return _File(state, length=len(state))
    names = {name: _forced(below) for name, below in state}
    return _Folder(names, now=names)


def outcomes(
    log: Iterable[Operation | Began | Saved],
    root: Path,
    found: Callable[[Path], int | None],
    place: Path,
    start: State = (),
    safe: int | None = None,
) -> Iterator[Outcome]:
    """What becomes of the program at every state after every entry of the log; each state once for each that may be
    found in it.

    root: the folder that the log is about. found: the step of the checkpoint that is found in such a folder; raises
    AssertionError for one that is damaged. place: a folder for the states, made and removed. start: what was in the
    folder before; safe: the step that was found in it.
    """
    disk, seen = Disk(root, start), set[tuple[State, int | None, int | None]]()
    saving: int | None = None
    for number, entry in enumerate(log, 1):
        match entry:
            case Began(step):
                saving = step
            case Saved(step):
                safe = saving = step
            case operation:
                disk.do(operation)
        for state in disk.states():
            known = (state, safe, saving)
            if known not in seen:
                seen.add(known)
                yield Outcome(
                    state, number, _wrong(state, {safe, saving if saving is not None else safe}, found, place)
                )


def _wrong(state: State, allowed: set[int | None], found: Callable[[Path], int | None], place: Path) -> str:
    make(state, place)
    try:
        step = found(place)
    except AssertionError as error:
        return str(error)
    finally:
        shutil.rmtree(place)
    return "" if step in allowed else f"found {step}, and {allowed} are safe"


def make(state: State, path: Path) -> None:
    """Lay the state down as real files."""
    if isinstance(state, bytes):
        path.write_bytes(state)
        return
    path.mkdir()
    for name, below in state:
        make(below, path / name)
