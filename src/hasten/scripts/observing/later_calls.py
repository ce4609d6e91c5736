"""Whether a script trains once more behind the loop that is running: it calls again what runs now, as a script does
that trains two models by one function.
"""

from __future__ import annotations

import ast
import linecache
import os
from collections.abc import Iterator, Sequence
from types import FrameType

from hasten.scripts.observing.read_values import value_of

_SCOPES = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def called_again(frames: Sequence[FrameType], outermost: FrameType, loop_line: int) -> str:
    """Function and place, "" for none. frames: the user's running functions, the innermost first; outermost: of them,
    that has the outermost loop, which begins in loop_line."""
    first = frames.index(outermost)
    for number, frame in list(enumerate(frames))[first:]:
        running = {inner.f_code for inner in frames[:number]}
        path = frame.f_code.co_filename
        for statement in _behind(path, loop_line if number == first else frame.f_lineno):
            for call in _calls(statement):
                if getattr(value_of(call.func, frame), "__code__", None) in running:
                    return f"{ast.unparse(call.func)} in {os.path.basename(path)}:{call.lineno}"
    return ""


def _behind(path: str, line: int) -> Sequence[ast.stmt]:
    """Statements that the same function reaches after the one of a line."""
    try:
        block: Sequence[ast.stmt] = ast.parse("".join(linecache.getlines(path))).body
    except (SyntaxError, ValueError):
        return ()
    found: list[ast.stmt] = []
    while (at := next((n for n, each in enumerate(block) if _contains(each, line)), None)) is not None:
        here, rest = block[at], block[at + 1 :]
        if isinstance(here, _SCOPES) or any(isinstance(each, ast.Return | ast.Raise) for each in block[at:]):
            found.clear()
        if not isinstance(here, _SCOPES):
            found += rest
        block = next((each for each in _blocks(here) if any(_contains(inner, line) for inner in each)), ())
    return found


def _contains(statement: ast.stmt, line: int) -> bool:
    return statement.lineno <= line <= (statement.end_lineno or statement.lineno)


def _blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for name in ("body", "orelse", "finalbody"):
        yield getattr(statement, name, [])
    for handler in getattr(statement, "handlers", []):
        yield handler.body


def _calls(statement: ast.stmt) -> Iterator[ast.Call]:
    if isinstance(statement, _SCOPES):
        return
    for node in ast.walk(statement):
        if isinstance(node, ast.Call):
            yield node
