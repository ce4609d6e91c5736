"""What the copy of a trial holds before its script starts, and again before each further start: a script that resumes
from its own checkpoint would otherwise have nothing left to do.

What has changed is removed and put there again. It is never written into, because the script may have left it open.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISDIR, S_ISLNK

from hasten.checkpoint.files import copy_file, link_to, make_building_folder, remove_folder, replace_file
from hasten.scripts.trials.scratch import LEFT_OUT, Scratch


@dataclass(frozen=True, kw_only=True, slots=True)
class _Entry:
    """link: where a symbolic link leads. changed_ns: of a file, the time of its last change, which no program sets."""

    is_folder: bool = False
    link: str = ""
    changed_ns: int = 0


class CopyContents:
    """scratch: with its edits, before the script starts."""

    def __init__(self, scratch: Scratch) -> None:
        self._scratch, self._first = scratch, _entries(scratch.place)

    def restore(self) -> None:
        """No process may write there meanwhile."""
        now = _entries(self._scratch.place)
        for path, entry in now.items():
            if self._first.get(path) != entry:
                remove_folder(Path(path))
        for path, entry in self._first.items():
            if now.get(path) != entry:
                self._put_back(Path(path), entry)
                self._first[path] = _entry(path)

    def _put_back(self, path: Path, entry: _Entry) -> None:
        if entry.is_folder:
            make_building_folder(path)
        elif entry.link:
            link_to(Path(entry.link), path)
        elif path in self._scratch.edited:
            replace_file(path, self._scratch.edited[path])
        else:
            copy_file(Path(self._scratch.users_path(str(path))), path)


def _entries(place: Path) -> dict[str, _Entry]:
    """A folder before what is in it."""
    found = dict[str, _Entry]()
    for folder, folders, files in os.walk(place):
        folders[:] = [name for name in folders if name not in LEFT_OUT]
        for name in (*folders, *files):
            path = os.path.join(folder, name)
            found[path] = _entry(path)
    return found


def _entry(path: str) -> _Entry:
    found = os.lstat(path)
    if S_ISDIR(found.st_mode):
        return _Entry(is_folder=True)
    if S_ISLNK(found.st_mode):
        return _Entry(link=os.readlink(path))
    return _Entry(changed_ns=found.st_ctime_ns)
