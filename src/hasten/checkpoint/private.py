"""Folders that nobody else can write to, for what is run or trained on without another look."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hasten.checkpoint.files import make_private_folder
from hasten.errors import StorageFailed


def user_caches() -> Path:
    """Where this user's caches lie: $XDG_CACHE_HOME/hasten, or ~/.cache/hasten. Relative ones do not count, as the
    XDG Base Directory Specification says."""
    home = os.environ.get("XDG_CACHE_HOME", "")
    return (Path(home) if os.path.isabs(home) else Path.home() / ".cache") / "hasten"


def code_folder(path: Path, variable: str) -> Path:
    """The folder at `path` for compiled code, made with mode 0700 if there is none. variable: of the environment, that
    moves it.

    Raises StorageFailed when it cannot be made, is a link, belongs to somebody else, or can be written by others.
    """
    make_private_folder(path)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise StorageFailed(
            f"compiled code would be run that others can write ({stat.filemode(found.st_mode)}, owner {found.st_uid})",
            where=str(path),
            fix=f"remove it, or set {variable} to a directory of your own",
        )
    return path
