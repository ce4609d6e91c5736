"""Cache folders that nobody else can write to: what they hold is executed, or trained on, without a check."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from hasten.checkpoint.files import make_private_folder
from hasten.errors import StorageFailed

ELSEWHERE = "set XDG_CACHE_HOME to a folder of your own"


def user_caches() -> Path:
    """This user's caches: $HASTEN_CACHE, $XDG_CACHE_HOME/hasten, or ~/.cache/hasten.

    Relative paths are ignored, as the XDG Base Directory Specification says. Raises StorageFailed for a user without a
    home.
    """
    if os.path.isabs(own := os.environ.get("HASTEN_CACHE", "")):
        return Path(own)
    if os.path.isabs(chosen := os.environ.get("XDG_CACHE_HOME", "")):
        return Path(chosen) / "hasten"
    try:
        return Path.home() / ".cache" / "hasten"
    except RuntimeError:  # as in a container with an arbitrary user number
        what = f"there is no folder for caches: user {os.getuid()} has no home directory, and HOME is not set"
        raise StorageFailed(what, fix=ELSEWHERE) from None


def user_cache(name: str) -> Path:
    """A folder in user_caches(), mode 0700, made if there is none. Raises as user_caches and own_folder do."""
    return own_folder(own_folder(user_caches(), ELSEWHERE) / name, ELSEWHERE)


def own_folder(path: Path, instead: str) -> Path:
    """The folder at `path`, mode 0700, made if there is none.

    instead: what to do where it cannot be used; it ends a sentence.
    Raises StorageFailed when it cannot be made, and as check_own does.
    """
    make_private_folder(path)
    check_own(path, instead)
    return path


def check_own(path: Path, instead: str) -> None:
    """Raises StorageFailed for what is no folder, a link, another user's, or writable by others."""
    about = path.lstat()
    if not stat.S_ISDIR(about.st_mode):
        raise StorageFailed("it is not a folder", where=str(path), fix=f"move it away, or {instead}")
    if about.st_uid != os.getuid():
        raise StorageFailed(f"the folder belongs to another user (number {about.st_uid})", where=str(path), fix=instead)
    if about.st_mode & (stat.S_IWGRP | stat.S_IWOTH):
        what = "other users can write into the folder"
        raise StorageFailed(what, where=str(path), fix=f"chmod 700 {path}, or {instead}")
