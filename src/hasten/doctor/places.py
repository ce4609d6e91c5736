"""Whose code a frame of a running program runs: the user's, or a library's."""

from __future__ import annotations

import ast
import os
import re
import site
from functools import cache
from itertools import islice
from pathlib import Path
from types import CodeType, FrameType
from typing import NamedTuple

import torch

from hasten.training import user_code

# Links are not followed: neither are they in the names that frames give their files.
_HASTEN = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "")
_LOADING = os.path.join(_HASTEN, "data", "")
_LIBRARIES = tuple(os.path.join(folder, "") for folder in (os.path.dirname(torch.__file__), site.getusersitepackages()))
_COMPILED = "_TorchDynamoContext."  # the functions of torch's compiler that call compiled code
_GENERATED = "torchinductor"  # in the name of the folder that the compiler writes to, unless it is told another one
_COMPREHENSIONS = re.compile(r"(\.<locals>\.<(genexpr|listcomp|setcomp|dictcomp)>)+$")


Span = tuple[tuple[int, int], tuple[int, int]]
"""Line and column of the beginning and of the end."""


class Place(NamedTuple):
    """A line of the user's code. function: with its class, "Model.forward". in_loading: run by what reads data."""

    path: str
    line: int
    function: str
    in_loading: bool


class Where(NamedTuple):
    """place: the innermost line of the user's. loops: the lines of all functions of the user's that wait for it, and it
    itself, where what they do is done in a loop; one of a function, the innermost first."""

    place: Place | None = None
    loops: tuple[Place, ...] = ()


@cache
def spans_of_loops(path: str) -> tuple[Span, ...]:
    """Parts of a source that a loop or a comprehension runs again and again; none where it cannot be read."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return ()
    found: list[Span] = []
    for node in ast.walk(tree):
        match node:
            case ast.For(body=body) | ast.AsyncFor(body=body) | ast.While(body=body):
                found += [_span(each) for each in body]
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
    line, end_line, column, end_column = next(islice(code.co_positions(), instruction // 2, None), (None,) * 4)
    if line is None or end_line is None or column is None or end_column is None:
        return False
    spans = spans_of_loops(code.co_filename)
    return any(begin <= (line, column) and (end_line, end_column) <= end for begin, end in spans)


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


def place_of(frame: FrameType | None) -> Place | None:
    return where(frame).place


def where(frame: FrameType | None) -> Where:
    """In the user's code that hasten has called, by a stack; nowhere where it has called none, and inside of compiled
    code, whose lines nobody knows."""
    lines: dict[tuple[str, str], tuple[int, bool]] = {}  # of each function, in its innermost call; whether in a loop
    in_loading = False
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_users(filename):
            line = frame.f_lineno, _is_in_a_loop(frame.f_code, frame.f_lasti)
            lines.setdefault((filename, function_of(frame.f_code.co_qualname)), line)
        elif frame.f_code.co_qualname.startswith(_COMPILED):
            return Where()
        in_loading = in_loading or filename.startswith(_LOADING)
        if lines and filename.startswith(_HASTEN):
            places = {
                Place(path, line, function, in_loading): again for (path, function), (line, again) in lines.items()
            }
            return Where(next(iter(places)), tuple(place for place, again in places.items() if again))
        frame = frame.f_back
    return Where()  # or in the program that runs hasten
