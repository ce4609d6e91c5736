"""Processes that are killed inside a chosen file operation, and what a test needs to watch others.

Every operation of checkpoint/files.py that changes the disk is numbered in the order in which it happens. A child dies
before operation k does anything; inside a write, after half of it has reached the file. Nothing is cleaned up then: no
`finally`, no flush, as when the system kills it.
"""

from __future__ import annotations

import builtins
import os
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hasten.checkpoint import files

KILLED = 77
OPERATIONS = ("fsync", "replace", "rename", "mkdir", "unlink", "rmdir")

Noted = Callable[[str, str, Callable[[], None]], None]  # name, path, and what does half of it


@contextmanager
def watched(note: Noted) -> Iterator[None]:
    """Call `note` before every operation that changes the disk."""
    originals = {name: getattr(os, name) for name in OPERATIONS}

    def watching(name: str) -> Callable[..., Any]:
        def operation(target: Any, *rest: Any, **options: Any) -> Any:
            path = os.readlink(f"/proc/self/fd/{target}") if isinstance(target, int) else os.fspath(target)
            note(name, path, lambda: None)
            return originals[name](target, *rest, **options)

        return operation

    def opened(path: Any, mode: str = "r", *rest: Any, **options: Any) -> Any:
        if "r" not in mode:
            note("open", os.fspath(path), lambda: None)
        file = builtins.open(path, mode, *rest, **options)  # noqa: SIM115  it is the caller's to close
        return file if "r" in mode else _Watched(file, note)

    for name in OPERATIONS:
        setattr(os, name, watching(name))
    files.__dict__["open"] = opened
    try:
        yield
    finally:
        del files.__dict__["open"]
        for name, original in originals.items():
            setattr(os, name, original)


class _Watched:
    def __init__(self, file: Any, note: Noted) -> None:
        self._file, self._note = file, note

    def write(self, data: bytes) -> int:
        self._note("write", self._file.name, lambda: self._half(data))
        return self._file.write(data)

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
def recorded() -> Iterator[list[tuple[str, str]]]:
    """The operations inside, with their paths."""
    found: list[tuple[str, str]] = []
    with watched(lambda name, path, half: found.append((name, str(path)))):
        yield found


def killed_inside(number: int, work: Callable[[], Any]) -> bool:
    """Do the work in a child that dies inside its file operation of this number, counted from 1; False when the work
    was done before it came to that."""

    def die(name: str, path: str, half: Callable[[], None]) -> None:
        nonlocal count
        count += 1
        if count == number:
            half()
            os._exit(KILLED)

    def watched_work() -> bool:
        with watched(die):
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
