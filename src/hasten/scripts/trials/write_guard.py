"""Keeps a trial from changing anything of the user's.

Python reports what it is about to open, rename or remove (PEP 578). In the trial's own folder everything is allowed: a
link to a file of the user's becomes a copy before it is written to, and a link to a folder becomes a folder of links
before something in it is written. Elsewhere, what would be written is refused, and
the trial fails with the path as its reason. Libraries that write files by themselves, in C, are not seen; torch.save is
one of them, and is made to open its file by Python.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from hasten.checkpoint.files import open_for_library, replace_folder_link, replace_link

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_ONE, _BOTH, _SECOND = slice(1), slice(2), slice(1, 2)
_CHANGES = {
    "os.remove": _ONE, "os.rename": _BOTH, "os.rmdir": _ONE, "os.mkdir": _ONE, "os.truncate": _ONE,
    "os.symlink": _SECOND, "os.link": _BOTH, "os.chmod": _ONE, "os.utime": _ONE, "shutil.rmtree": _ONE,
}  # fmt: skip
"""Event -> which of its arguments are paths that change."""


def guard_writes(inside: Path, users: Sequence[Path]) -> None:
    """For the rest of this process. inside: the trial's own folder; users: folders of which it holds copies."""
    shared = ("/tmp", "/var/tmp", inside.parent, Path.home() / ".cache", "/dev", "/proc")
    sys.addaudithook(_Guard(*([os.path.realpath(each) for each in some] for some in ([inside], users, shared))))


def own_folders(path: str, inside: str) -> None:
    """No folder of this path is a link any more, where the path is inside the trial's own folder."""
    if not _within(path, [inside]):
        return
    here = inside
    for name in os.path.relpath(path, inside).split(os.sep):
        here = os.path.join(here, name)
        if os.path.islink(here) and os.path.isdir(here):
            replace_folder_link(Path(here))


def save_by_python() -> None:
    """Let torch.save open its files by Python, for the rest of this process."""
    import torch  # a copy that is run plainly loads torch by itself

    torch.save = _by_python(torch.save)


class _Guard:
    def __init__(self, inside: Sequence[str], users: Sequence[str], shared: Sequence[str]) -> None:
        self._inside, self._users, self._shared, self._is_busy = inside, users, shared, False

    def __call__(self, event: str, args: tuple[Any, ...]) -> None:
        if self._is_busy:
            return
        if event == "open":
            path, _, flags = args
            if isinstance(flags, int) and flags & _WRITING:
                self._check(path, truncates=bool(flags & os.O_TRUNC), follows=True)
        elif event in _CHANGES:
            for path in args[_CHANGES[event]]:
                follows = event in ("os.truncate", "os.chmod", "os.utime")
                self._check(path, truncates=True, follows=follows, within=event == "shutil.rmtree")

    def _check(self, path: Any, *, truncates: bool, follows: bool, within: bool = False) -> None:
        """follows: whether the operation acts on what a link leads to, and not on the link. within: it changes what is
        in the folder of this path."""
        if not isinstance(path, str | bytes | os.PathLike):
            return  # a descriptor that is open already
        self._is_busy = True
        try:
            name = os.path.abspath(os.fsdecode(path))
            for inside in self._inside:
                own_folders(name if within else os.path.dirname(name), inside)
            folder = os.path.realpath(os.path.dirname(name))
            place = os.path.join(folder, os.path.basename(name))
            if self._is_own(place) and follows and os.path.islink(place):
                replace_link(Path(place), keep=not truncates)
            elif not self._is_own(os.path.realpath(place) if follows else place):
                what = f"a trial does not write to {name}, which is outside of its copy of the folder"
                raise PermissionError(f"{what}: give the script a path within")
        finally:
            self._is_busy = False

    def _is_own(self, path: str) -> bool:
        return _within(path, self._inside) or (_within(path, self._shared) and not _within(path, self._users))


def _within(path: str, folders: Sequence[str]) -> bool:
    return any(path == each or path.startswith(each + os.sep) for each in folders)


def _by_python(save: Callable[..., None]) -> Callable[..., None]:
    def saved(obj: object, f: Any, *args: Any, **named: Any) -> None:
        if not isinstance(f, str | os.PathLike):
            save(obj, f, *args, **named)
            return
        with open_for_library(f) as file:
            save(obj, file, *args, **named)

    return saved
