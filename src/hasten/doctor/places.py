"""Whose code a frame of a running program runs: the user's, or a library's."""

from __future__ import annotations

import ast
import os
import re
import site
import sysconfig
from functools import cache
from pathlib import Path
from types import FrameType
from typing import NamedTuple

import torch

_HASTEN = str(Path(__file__).resolve().parent.parent)
_LOADING = str(Path(_HASTEN) / "data")
_LIBRARIES = tuple(
    f"{folder}{os.sep}"
    for folder in {_HASTEN, str(Path(torch.__file__).parent), site.getusersitepackages()}
    | {sysconfig.get_path(each) for each in ("stdlib", "platstdlib", "purelib", "platlib")}
)
_COMPILED = "_TorchDynamoContext."  # the functions of torch's compiler that call compiled code
_GENERATED = "torchinductor"  # in the name of the folder that the compiler writes to, unless it is told another one
_COMPREHENSIONS = re.compile(r"(\.<locals>\.<(genexpr|listcomp|setcomp|dictcomp)>)+$")


class Place(NamedTuple):
    """A line of the user's code. function: with its class, "Model.forward". in_loading: run by what reads data."""

    path: str
    line: int
    function: str
    in_loading: bool


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
    return not filename.startswith((*_LIBRARIES, "<")) and generated not in filename


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
    """The innermost line of the user's that hasten has called in a stack; None where it has called none, and inside of
    compiled code, whose lines nobody knows."""
    found: tuple[str, int, str] | None = None
    in_loading = False
    while frame is not None:
        filename = frame.f_code.co_filename
        if found is None and is_users(filename):
            found = filename, frame.f_lineno, function_of(frame.f_code.co_qualname)
        elif frame.f_code.co_qualname.startswith(_COMPILED):
            return None
        in_loading = in_loading or filename.startswith(_LOADING)
        if found is not None and filename.startswith(_HASTEN):
            return Place(*found, in_loading)
        frame = frame.f_back
    return None  # or a line of the program that runs hasten
