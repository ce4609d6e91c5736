"""Processes that are killed inside a chosen file operation, disks that fail there, and what a test needs to watch them.

Every operation of checkpoint/files.py that changes the disk is numbered in the order in which it happens. A child dies
before operation k does anything; inside a write, after half of it has reached the file. Nothing is cleaned up then: no
`finally`, no flush, as when the system kills it. What only reads is numbered apart from that.
"""

from __future__ import annotations

import builtins
import os
import resource
import sys
import traceback
from collections.abc import Callable, Container, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from hasten import regular_files
from hasten.checkpoint import files

KILLED = 77
OPERATIONS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir", "ftruncate", "pwrite")


def _nothing() -> None:
    pass


@dataclass(frozen=True)
class Operation:
    """One that is about to happen. target: of a renaming. data: of a write. half: does half of it, where it has one."""

    name: str
    path: str
    target: str = ""
    data: Any = b""
    half: Callable[[], object] = _nothing


Noted = Callable[[Operation], None]
Watch = Callable[[Noted], AbstractContextManager[None]]


@contextmanager
def watched(note: Noted) -> Iterator[None]:
    """Call `note` before every operation that changes the disk."""
    originals = {name: getattr(os, name) for name in (*OPERATIONS, "open")}

    def watching(name: str) -> Callable[..., Any]:
        def operation(target: Any, *rest: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
            noted = Operation(name, path)
            if name in ("rename", "replace"):
                noted = replace(noted, target=os.fspath(rest[0]))
            elif name == "pwrite":
                half = rest[0][: len(rest[0]) // 2]
                noted = replace(noted, data=rest[0], half=lambda: originals[name](target, half, *rest[1:]))
            if name != "open" or (rest[0] if rest else options["flags"]) & os.O_CREAT:
                note(noted)
            return originals[name](target, *rest, **options)

        return operation

    def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if "r" not in mode:
            note(Operation("open", os.fspath(path)))
        file = builtins.open(path, mode, *rest, **options)  # noqa: SIM115  it is the caller's to close
        return file if "r" in mode else _Watched(file, note)

    with _replaced({name: watching(name) for name in originals}, opened):
        yield


@contextmanager
def watched_reads(note: Noted) -> Iterator[None]:
    """Call `note` before every listing of a folder, opening of a file for reading and reading of a piece."""
    listdir = os.listdir

    def listed(path: Any) -> list[str]:
        note(Operation("listdir", os.fspath(path)))
        return listdir(path)

    def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if "r" in mode:
            note(Operation("open", os.fspath(path)))
        file = builtins.open(path, mode, *rest, **options)  # noqa: SIM115  it is the caller's to close
        return _Watched(file, note) if "r" in mode else file

    with _replaced({"listdir": listed}, opened):
        yield


@contextmanager
def _replaced(functions: dict[str, Callable[..., Any]], opened: Callable[..., Any]) -> Iterator[None]:
    """Functions of os, and the open of checkpoint/files.py and regular_files.py."""
    originals = {name: getattr(os, name) for name in functions}
    for name, function in functions.items():
        setattr(os, name, function)
    for module in (files, regular_files):
        module.__dict__["open"] = opened
    try:
        yield
    finally:
        for module in (files, regular_files):
            del module.__dict__["open"]
        for name, original in originals.items():
            setattr(os, name, original)


class _Watched:
    """A file that was opened for reading or for writing, of which only the other is done."""

    def __init__(self, file: Any, note: Noted) -> None:
        self._file, self._note = file, note

    def read(self, size: int = -1) -> bytes:
        self._note(Operation("read", os.fspath(self._file.name)))
        return self._file.read(size)

    def readinto(self, buffer: Any) -> int:
        self._note(Operation("read", os.fspath(self._file.name)))
        return self._file.readinto(buffer)

    def write(self, data: bytes) -> int:
        self._note(Operation("write", os.fspath(self._file.name), data=data, half=lambda: self._half(data)))
        return self._file.write(data)

    def truncate(self, size: int) -> int:
        self._note(Operation("truncate", os.fspath(self._file.name)))
        return self._file.truncate(size)

    def _half(self, data: bytes) -> None:
        self._file.write(data[: len(data) // 2])
        self._file.flush()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)

    def __enter__(self) -> _Watched:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()


@contextmanager
def logged() -> Iterator[list[Operation]]:
    """The operations inside, with what they write."""
    found: list[Operation] = []
    with watched(lambda operation: found.append(replace(operation, data=bytes(operation.data), half=_nothing))):
        yield found


@contextmanager
def recorded() -> Iterator[list[tuple[str, str]]]:
    """The operations inside, with their paths."""
    found: list[tuple[str, str]] = []
    with watched(lambda operation: found.append((operation.name, operation.path))):
        yield found


@contextmanager
def failing(numbers: Container[int], code: int, watch: Watch = watched) -> Iterator[list[Operation]]:
    """A disk that refuses the operations of these numbers, counted from 1, each after half of it: range(3, 4) is the
    third alone, range(3, sys.maxsize) it and all after it. Gives those that were refused."""
    count, refused = 0, list[Operation]()

    def fail(operation: Operation) -> None:
        nonlocal count
        count += 1
        if count in numbers:
            refused.append(operation)
            operation.half()
            raise OSError(code, os.strerror(code))

    with watch(fail):
        yield refused


@contextmanager
def file_size_limit(limit: int) -> Iterator[None]:
    """A real refusal of the kernel, which needs no rights: no file may grow above `limit` bytes."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def killed_inside(number: int, work: Callable[[], Any], watch: Watch = watched) -> bool:
    """Do the work in a child that dies inside its file operation of this number, counted from 1; False when the work
    was done before it came to that."""

    def die(operation: Operation) -> None:
        nonlocal count
        count += 1
        if count == number:
            operation.half()
            os._exit(KILLED)

    def watched_work() -> bool:
        with watch(die):
            work()
        return True

    count = 0
    return not ended(started(watched_work), but=KILLED)


def started(work: Callable[[], bool]) -> int:
    """A forked child that does the work; its number. It ends with 0 when the work gave True."""
    child = os.fork()
    if child:
        return child
    code = 1
    try:
        code = 0 if work() is True else 2
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def ended(child: int, but: int | None = None) -> bool:
    """Wait for a child: True when it did its work, False when it ended with `but`; any other end fails the test."""
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert code in (0, but), f"the child ended with {code}"
    return code == 0


def together(works: list[Callable[[], bool]]) -> list[bool]:
    """Do all in children of their own, which start when the last of them has been made."""
    reader, writer = os.pipe()

    def after_the_start(work: Callable[[], bool]) -> bool:
        os.close(writer)
        os.read(reader, 1)  # ends when the last writer is closed
        return work()

    children = [started(lambda work=work: after_the_start(work)) for work in works]
    os.close(writer)
    os.close(reader)
    return [ended(child) for child in children]


@contextmanager
def listening() -> Iterator[tuple[Callable[[str], None], Callable[[], str]]]:
    """How a child tells a line, and how the test waits for it."""
    reader, writer = os.pipe()
    with os.fdopen(reader) as lines, os.fdopen(writer, "w", buffering=1) as telling:
        yield lambda text: print(text, file=telling, flush=True), lambda: lines.readline().rstrip("\n")
