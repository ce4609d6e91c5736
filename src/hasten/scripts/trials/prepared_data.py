"""Data that a script writes before its first step where they are missing, as a download.

Each trial would write them again, in a copy of its own. So those of the first one, which observes the script, are kept
for all others. They are not put into the user's folder. A folder in which the observed steps write is not kept: a
trial could resume from a checkpoint there.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import islice
from pathlib import Path
from stat import S_ISDIR

from hasten.checkpoint.files import link_to, move, replace_folder_link
from hasten.facts.scripts.seen import PreparedData
from hasten.scripts.trials.write_guard import own_folders

LEAST_BYTES = 1 << 20  # of a file or folder: what is smaller is written again in no time, and can be a log
MOST_LINKS = 1000  # into one folder of these data

Files = Mapping[str, tuple[int, int]]
"""Path of a file -> its size, and the time of its last change."""


def new_data(place: Path) -> Mapping[str, Files]:
    """Files and folders in a trial's copy that the user does not have -> the files of each. place: as in Scratch."""
    return {os.path.relpath(path, place): _files_of(path) for path in _new_entries(place)}


def unchanged_data(first: Mapping[str, Files], now: Mapping[str, Files]) -> dict[str, int]:
    """Path -> bytes, of what is large. first, now: of new_data, before and behind the observed steps."""
    sizes = {path: sum(size for size, _ in files.values()) for path, files in now.items() if first.get(path) == files}
    return {path: size for path, size in sizes.items() if size >= LEAST_BYTES}


def keep(found: Mapping[str, int], place: Path, folder: Path) -> PreparedData | None:
    """Moved out of a copy whose trial has ended; None where there are none. found: of unchanged_data. folder: a new
    one."""
    there = {path: size for path, size in found.items() if os.path.lexists(place / path)}
    for each in there:
        move(place / each, folder / each)
    paths = tuple(str(Path(place.anchor, each)) for each in there)
    return PreparedData(folder=str(folder), paths=paths, size_bytes=sum(there.values())) if there else None


def link_prepared(prepared: PreparedData, place: Path) -> None:
    """Into another trial's copy. A folder of few entries is one of links there: what a library writes in its real path,
    such as a lock beside a data set, is the trial's own."""
    for path in prepared.paths:
        inside = Path(path).relative_to(place.anchor)
        link = place / inside
        own_folders(str(link.parent), str(place))
        if not os.path.lexists(link):
            link_to(Path(prepared.folder) / inside, link)
            if len([*islice(link.rglob("*"), MOST_LINKS + 1)]) <= MOST_LINKS:
                _own_all_folders(link)


def _own_all_folders(link: Path) -> None:
    if link.is_dir():
        replace_folder_link(link)
        for each in [*link.iterdir()]:
            if not each.readlink().is_symlink():  # a link among the data stays one: it can lead anywhere
                _own_all_folders(each)


def _new_entries(place: Path) -> Iterator[str]:
    """The outermost ones."""
    for folder, folders, files in os.walk(place):
        users = os.path.join(place.anchor, os.path.relpath(folder, place))
        new = {name for name in (*folders, *files) if not os.path.lexists(os.path.join(users, name))}
        yield from (path for name in sorted(new) if not os.path.islink(path := os.path.join(folder, name)))
        folders[:] = [name for name in folders if name not in new]


def _files_of(path: str) -> Files:
    """Of a file, itself. The script may rename or remove them meanwhile."""
    found = dict[str, tuple[int, int]]()
    for file in (path, *(os.path.join(folder, name) for folder, _, names in os.walk(path) for name in names)):
        with suppress(FileNotFoundError):
            state = os.lstat(file)
            if not S_ISDIR(state.st_mode):
                found[file] = state.st_size, state.st_mtime_ns
    return found
