"""Which line of the user's code a running program is in, and which of its lines are in loops."""

from __future__ import annotations

import ast
import linecache
import os
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

from hasten.users_code import is_users_file

_HASTEN = os.path.join(Path(os.path.abspath(__file__)).parents[2], "")
_LOADING = os.path.join(_HASTEN, "data", "")
_COMPILED = "_TorchDynamoContext."  # the functions of torch's compiler that call compiled code
_COMPREHENSIONS = re.compile(r"(\.<locals>\.<(genexpr|listcomp|setcomp|dictcomp)>)+$")
_COMPREHENSION = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})  # the names of their own code


class Place(NamedTuple):
    """A line of the user's code. function: with its class, "Model.forward". in_loading: run by what reads data."""

    path: str
    line: int
    function: str
    in_loading: bool


class Where(NamedTuple):
    """place: the innermost line of the user's. loops: the lines in loops, one for each function of the user's on the
    stack that is in one, the innermost first."""

    place: Place | None = None
    loops: tuple[Place, ...] = ()


@cache
def lines_of_loops(path: str) -> tuple[range, ...]:
    """The lines of a source that a loop or a comprehension repeats; none where it cannot be read."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError):
        return ()
    repeated: list[ast.stmt | ast.expr] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.For | ast.While):
            repeated += node.body
        elif isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
            repeated.append(node)
    return tuple(range(each.lineno, (each.end_lineno or each.lineno) + 1) for each in repeated)


@cache
def _is_in_a_loop(code: CodeType, line: int) -> bool:
    if code.co_name in _COMPREHENSION:
        return True
    # A loop around the whole function has defined it, and need not call it.
    return any(line in lines and code.co_firstlineno not in lines for lines in lines_of_loops(code.co_filename))


@cache
def function_of(qualified: str) -> str:
    """By the qualified name of what runs: a comprehension is a part of the function that it is in."""
    return _COMPREHENSIONS.sub("", qualified).rpartition("<locals>.")[2]


def place_of(stack: Iterable[FrameType]) -> Place | None:
    return where(stack).place


def where(stack: Iterable[FrameType]) -> Where:
    """In the user's code that hasten has called, by its frames, the innermost first. Nowhere in compiled code, whose
    lines are not known, and in the program that runs hasten."""
    innermost: tuple[str, int, str] | None = None
    loops: dict[tuple[str, str], int] = {}  # the line of each function that is in one
    in_loading = False
    for frame in stack:
        filename = frame.f_code.co_filename
        if is_users_file(filename):
            function = function_of(frame.f_code.co_qualname)
            innermost = innermost or (filename, frame.f_lineno, function)
            if (filename, function) not in loops and _is_in_a_loop(frame.f_code, frame.f_lineno):
                loops[filename, function] = frame.f_lineno
        elif frame.f_code.co_qualname.startswith(_COMPILED):
            return Where()
        in_loading = in_loading or filename.startswith(_LOADING)
        if innermost is not None and filename.startswith(_HASTEN):
            around = tuple(Place(path, line, function, in_loading) for (path, function), line in loops.items())
            return Where(Place(*innermost, in_loading), around)
    return Where()


def reason_of(error: Exception) -> str:
    """Why something could not be measured: the first line of the error's message, or its class."""
    return str(error).strip().partition("\n")[0].strip() or type(error).__name__
