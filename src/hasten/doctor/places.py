"""Whose code a frame of a running program runs: the user's, or a library's."""

from __future__ import annotations

import ast
import os
import re
import site
from functools import cache
from pathlib import Path
from types import FrameType
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


class Place(NamedTuple):
    """A line of the user's code. function: with its class, "Model.forward". in_loading: run by what reads data."""

    path: str
    line: int
    function: str
    in_loading: bool


class Where(NamedTuple):
    """place: the innermost line of the user's. loops: those of all functions of the user's that wait for it, or are it,
    which stand in loops; one of a function, the innermost first."""

    place: Place | None = None
    loops: tuple[Place, ...] = ()


@cache
def lines_of_loops(path: str) -> frozenset[int]:
    """Lines of a source that a loop or a comprehension runs again and again; none where it cannot be read."""
    try:
        tree = ast.parse(Path(path).read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return frozenset()
    found = set[int]()
    for node in ast.walk(tree):
        match node:
            case ast.For(body=body) | ast.AsyncFor(body=body) | ast.While(body=body):
                for each in body:
                    found.update(range(each.lineno, (each.end_lineno or each.lineno) + 1))
            case ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
                found.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
            case _:
                pass
    return frozenset(found)


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
    lines: dict[tuple[str, str], int] = {}  # of each function, in its innermost call
    in_loading = False
    while frame is not None:
        filename = frame.f_code.co_filename
        if is_users(filename):
            lines.setdefault((filename, function_of(frame.f_code.co_qualname)), frame.f_lineno)
        elif frame.f_code.co_qualname.startswith(_COMPILED):
            return Where()
        in_loading = in_loading or filename.startswith(_LOADING)
        if lines and filename.startswith(_HASTEN):
            places = [Place(path, line, function, in_loading) for (path, function), line in lines.items()]
            return Where(places[0], tuple(each for each in places if each.line in lines_of_loops(each.path)))
        frame = frame.f_back
    return Where()  # or in the program that runs hasten
