"""The calls of the user's code that are running, each by its file, line and column."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from itertools import islice
from types import FrameType

from hasten.facts.scripts.seen import Call, Stack
from hasten.users_code import is_users_file

_BELOW = frozenset({"hasten", "torch", "contextlib", "functools"})
"""Packages between the user's call of torch and what is watched."""


def users_frames() -> Iterator[FrameType]:
    """Of the calling thread, the innermost first."""
    frame = inspect.currentframe()
    while frame is not None:
        if is_users_file(frame.f_code.co_filename):
            yield frame
        frame = frame.f_back


def call_in(frame: FrameType) -> Call:
    code = frame.f_code
    position = next(islice(code.co_positions(), frame.f_lasti // 2, None), (None, None, None, None))
    line, end_line, column, end_column = position
    return Call(
        file=code.co_filename,
        line=line or frame.f_lineno or 0,
        column=-1 if column is None else column,
        end=(end_line or 0, -1 if end_column is None else end_column),
        function=code.co_qualname,
    )


def users_calls() -> Stack:
    return tuple(map(call_in, users_frames()))


def library_between(made: object) -> str:
    """The package that makes an object of torch's on behalf of the user's innermost call, such as "transformers"; ""
    where that call is the one of the object's class, whoever has written or wrapped that."""
    frame, found, below = inspect.currentframe(), "", None
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        package = str(frame.f_globals.get("__name__", "")).partition(".")[0]
        if package not in _BELOW and not frame.f_code.co_filename.startswith("<"):
            found = package
        frame, below = frame.f_back, frame
    return "" if below is not None and _first_argument(below) is made else found


def function_between() -> str:
    """The name of the function that the user's innermost call is of; "" where that is not known."""
    frame, below = inspect.currentframe(), None
    while frame is not None and not is_users_file(frame.f_code.co_filename):
        frame, below = frame.f_back, frame
    return "" if below is None else below.f_code.co_name


def _first_argument(frame: FrameType) -> object:
    code = frame.f_code
    if code.co_argcount:
        return frame.f_locals.get(code.co_varnames[0])
    takes_any = bool(code.co_flags & inspect.CO_VARARGS)
    given = frame.f_locals.get(code.co_varnames[code.co_kwonlyargcount], ()) if takes_any else ()
    return next(iter(given), None)
