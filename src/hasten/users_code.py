"""Which code is the user's own, where an exception came through it, and what it says. Loads no torch."""

from __future__ import annotations

import os
import site
import sys
import sysconfig
import traceback
from functools import cache
from pathlib import Path
from typing import Any

from hasten.errors import HastenError

_LONGEST = 2000  # characters of what an exception says

_NOT_THE_USERS = tuple(
    {Path(sysconfig.get_path(name)) for name in ("stdlib", "platstdlib", "purelib", "platlib")}
    | {Path(os.path.abspath(__file__)).parent, Path(site.getusersitepackages())}
)
_INSTALLED_INTO = frozenset({"site-packages", "dist-packages"})  # also those of another Python, by PYTHONPATH or .pth


@cache
def is_users_file(filename: str) -> bool:
    """Whether a file of a traceback is the user's own: neither hasten's nor installed, nor code without a file."""
    path = Path(os.path.abspath(filename))
    if filename.startswith("<") or not _INSTALLED_INTO.isdisjoint(path.parts):
        return False
    if any(path.is_relative_to(folder) for folder in _NOT_THE_USERS):
        return False
    on_path = [folder for folder in sys.path if folder and path.is_relative_to(folder)]
    return not any(_is_a_target_of_pip(folder) for folder in on_path)


@cache
def _is_a_target_of_pip(folder: str) -> bool:
    """Whether `pip install --target` made this folder."""
    return next(Path(folder).glob("*.dist-info"), None) is not None


def users_frame(error: BaseException) -> str:
    """The deepest frame in the user's own code, where a user looks first; else the deepest one."""
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if is_users_file(frame.filename)] or list(frames)
    return f"{own[-1].filename}:{own[-1].lineno} in {own[-1].name}" if own else ""


def users_traceback(error: BaseException) -> str:
    """The traceback from the user's first frame on, as Python prints one; empty when no frame is theirs."""
    frames = traceback.extract_tb(error.__traceback__)
    first = next((place for place, frame in enumerate(frames) if is_users_file(frame.filename)), None)
    return "" if first is None else "".join(traceback.format_list(frames[first:]))


def reason_of(error: BaseException) -> str:
    """What was raised, in one line; of an error of hasten the place and what happened."""
    if isinstance(error, HastenError):
        return f"{error.where}: {error.what}" if error.where else error.what
    said = " ".join(text_of(error)[:_LONGEST].split())
    return f"{type(error).__name__}: {said}" if said else type(error).__name__


def text_of(error: BaseException) -> str:
    try:
        return str(error)
    except Exception:  # of a class of the user's
        return ""


def short(filename: str) -> str:
    """From here, where that is shorter."""
    return min(os.path.relpath(filename), filename, key=len)


def torchs_loss(value: Any) -> str | None:
    """How a loss of torch's own is written: a function of torch.nn.functional, a module or its class, or a partial of
    one. None for anything else."""
    inner: Any = getattr(value, "func", value)
    kind: Any = inner if isinstance(inner, type) else type(inner)
    if kind.__module__ == "torch.nn.modules.loss":
        written = f"torch.nn.{kind.__name__}(…)"
    elif getattr(inner, "__module__", None) == "torch.nn.functional":
        written = f"torch.nn.functional.{inner.__name__}"
    else:
        return None
    return written if inner is value else f"functools.partial({written}, …)"
