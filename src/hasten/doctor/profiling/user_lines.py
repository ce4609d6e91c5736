"""Whose code a frame of a running program runs: the user's, or a library's."""

from __future__ import annotations

import ast
import linecache
import os
import re
import site
from collections.abc import Iterable
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from hasten.training.failures import user_code

# Links are not followed: neither are they in the names that frames give their files.
_HASTEN = os.path.join(Path(os.path.abspath(__file__)).parents[2], "")
_LOADING = os.path.join(_HASTEN, "data", "")
_LIBRARIES = tuple(os.path.join(folder, "") for folder in (os.path.dirname(torch.__file__), site.getusersitepackages()))
_COMPILED = "_TorchDynamoContext."  # the functions of torch's compiler that call compiled code
_GENERATED = "torchinductor"  # in the name of the folder that the compiler writes to, unless it is told another one
_COMPREHENSIONS = re.compile(r"(\.<locals>\.<(genexpr|listcomp|setcomp|dictcomp)>)+$")
_COMPREHENSION = frozenset({"<genexpr>", "<listcomp>", "<setcomp>", "<dictcomp>"})  # the names of their own code


Span = tuple[tuple[int, int], tuple[int, int]]
"""Line and column of the beginning and of the end."""


class Place(NamedTuple):
    """A line of the user's code. function: with its class, "Model.forward". in_loading: run by what reads data."""

    path: str
    line: int
    function: str
    in_loading: bool


class Where(NamedTuple):
    """place: the innermost line of the user's. loops: of all functions of the user's that wait for it, and its own,
    lines where what they do is done in a loop; one of a function, the innermost first."""

    place: Place | None = None
    loops: tuple[Place, ...] = ()


@cache
def spans_of_loops(path: str) -> tuple[Span, ...]:
    """Parts of a source that a loop or a comprehension runs again and again; none where it cannot be read. A notebook's
    cells are in no file, and where Python looks for lines all the same."""
    try:
        tree = ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError):
        return ()
    found: list[Span] = []
    for node in ast.walk(tree):
        match node:
            case ast.For(body=body) | ast.AsyncFor(body=body):
                found += [_span(each) for each in body]
            case ast.While(test=test, body=body):
                found += [_span(each) for each in (test, *body)]
            case ast.ListComp(elt=elt, generators=generators) | ast.SetComp(elt=elt, generators=generators):
                found += _spans_of_comprehension([elt], generators)
            case ast.GeneratorExp(elt=elt, generators=generators):
                found += _spans_of_comprehension([elt], generators)
            case ast.DictComp(key=key, value=value, generators=generators):
                found += _spans_of_comprehension([key, value], generators)
            case _:
                pass
    return tuple(found)


def _spans_of_comprehension(elements: list[ast.expr], generators: list[ast.comprehension]) -> list[Span]:
    conditions = [each for generator in generators for each in generator.ifs]
    return [_span(each) for each in (*elements, *conditions, *(generator.iter for generator in generators[1:]))]


def _span(node: ast.stmt | ast.expr) -> Span:
    end = node.end_lineno or node.lineno, node.end_col_offset or node.col_offset
    return (node.lineno, node.col_offset), end


@cache
def _is_in_a_loop(code: CodeType, instruction: int) -> bool:
    """By columns: the line of a comprehension may call a model beside it."""
    if code.co_name in _COMPREHENSION:  # all of it: what it goes through first is computed outside
        return True
    here = _span_of(next(islice(code.co_positions(), instruction // 2, None), (None, None, None, None)))
    spans = spans_of_loops(code.co_filename)
    # A loop around the whole function has made it, and need not call it.
    return here is not None and any(_within(here, each) and not _within(_whole(code), each) for each in spans)


@cache
def _whole(code: CodeType) -> Span:
    spans = [span for position in code.co_positions() if (span := _span_of(position)) is not None]
    return min((begin for begin, _ in spans), default=(0, 0)), max((end for _, end in spans), default=(0, 0))


def _span_of(position: tuple[int | None, int | None, int | None, int | None]) -> Span | None:
    """Of an instruction: None for those that stand for nothing in the source."""
    line, end_line, column, end_column = position
    if line is None or end_line is None or column is None or end_column is None:
        return None
    return ((line, column), (end_line, end_column)) if (line, column) != (end_line, end_column) else None


def _within(inner: Span, outer: Span) -> bool:
    return outer[0] <= inner[0] and inner[1] <= outer[1]


@cache
def is_users(filename: str) -> bool:
    """Whether a file is none of torch, of hasten, of Python or of an installed package, and no compiler wrote it."""
    generated = os.environ.get("TORCHINDUCTOR_CACHE_DIR") or _GENERATED
    return user_code.is_users(filename) and not filename.startswith(_LIBRARIES) and generated not in filename


def shown(path: str) -> str:
    """As a person who stands in the present folder would write it."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


@cache
def function_of(qualified: str) -> str:
    """By the name that Python gives what is running: a comprehension is a part of the function that it is in."""
    return _COMPREHENSIONS.sub("", qualified).rpartition("<locals>.")[2]


def place_of(stack: Iterable[FrameType]) -> Place | None:
    return where(stack).place


def where(stack: Iterable[FrameType]) -> Where:
    """In the user's code that hasten has called, by its frames, the innermost first; nowhere where it has called none,
    and inside of compiled code, whose lines nobody knows."""
    innermost: tuple[str, int, str] | None = None
    loops: dict[tuple[str, str], int] = {}  # the line of each function that is in one
    in_loading = False
    for frame in stack:
        filename = frame.f_code.co_filename
        if is_users(filename):
            function = function_of(frame.f_code.co_qualname)
            innermost = innermost or (filename, frame.f_lineno, function)
            if (filename, function) not in loops and _is_in_a_loop(frame.f_code, frame.f_lasti):
                loops[filename, function] = frame.f_lineno
        elif frame.f_code.co_qualname.startswith(_COMPILED):
            return Where()
        in_loading = in_loading or filename.startswith(_LOADING)
        if innermost is not None and filename.startswith(_HASTEN):
            around = tuple(Place(path, line, function, in_loading) for (path, function), line in loops.items())
            return Where(Place(*innermost, in_loading), around)
    return Where()  # or in the program that runs hasten
