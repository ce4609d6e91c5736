"""Whose fault an exception is: the place in the user's own code that it came through, if there is one."""

from __future__ import annotations

import os
import sysconfig
import traceback
from pathlib import Path

from hasten.errors import UserCodeFailed


def user_code_failed(error: BaseException) -> UserCodeFailed | None:
    """The error to end with when the user's code raised `error`, or called what raised it; None when it had no part.

    The user's code is every file that belongs neither to this package nor to Python or what is installed in it. The
    innermost such place is named, because that is where a mistake can be mended.
    """
    what = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    if isinstance(error, SyntaxError) and error.filename is not None and is_users(error.filename):
        shown = f"{type(error).__name__}: {error.msg}"
        return UserCodeFailed(shown, where=f"{short(error.filename)}:{error.lineno}", fix="mend this line")
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if is_users(frame.filename)]
    if not frames:
        return None
    place = frames[-1]
    where = f"{short(place.filename)}:{place.lineno}, in {place.name}"
    return UserCodeFailed(what, where=where, fix=f"mend this line: {place.line}" if place.line else "mend this line")


def users_traceback(error: BaseException) -> str:
    """The traceback from the user's first frame on, as Python prints one; empty when no frame is theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((index for index, frame in enumerate(frames) if is_users(frame.filename)), None)
    return "" if first is None else "".join(traceback.format_list(frames[first:]))


def is_users(filename: str) -> bool:
    if filename.startswith("<"):  # code without a file: frozen modules, generated code
        return False
    path = Path(os.path.abspath(filename))
    return not any(path.is_relative_to(folder) for folder in _OTHERS)


_OTHERS = tuple(
    {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {Path(os.path.abspath(__file__)).parents[1]}
)


def short(filename: str) -> str:
    """From here, where that is shorter."""
    try:
        return min(os.path.relpath(filename), filename, key=len)
    except ValueError:  # on another drive
        return filename
