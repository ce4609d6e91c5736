"""Data that a script writes before its first step where they are missing, as a download.

Each trial would write them again, in a copy of its own. So those of the first one, which observes the script, are kept
for all others. They are not put into the user's folder.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from hasten.checkpoint.files import link_to, move
from hasten.facts.scripts.seen import PreparedData
from hasten.scripts.trials.write_guard import own_folders

LEAST_BYTES = 1 << 20  # of a file or folder: what is smaller is written again in no time, and can be a log


def new_data(place: Path) -> tuple[list[str], int]:
    """Paths of files and folders in a trial's copy that the user does not have, and their bytes. place: as in
    Scratch."""
    sizes = {path: size for path in _new_entries(place, place) if (size := _bytes_of(path)) >= LEAST_BYTES}
    return [os.path.relpath(path, place) for path in sizes], sum(sizes.values())


def keep(found: Sequence[str], size_bytes: int, place: Path, folder: Path) -> PreparedData | None:
    """Moved out of a copy whose trial has ended; None where there are none. found: as new_data has it. folder: a new
    one."""
    for each in found:
        move(place / each, folder / each)
    paths = tuple(str(Path(place.anchor, each)) for each in found)
    return PreparedData(folder=str(folder), paths=paths, size_bytes=size_bytes) if found else None


def link_prepared(prepared: PreparedData, place: Path) -> None:
    """Into another trial's copy."""
    for path in prepared.paths:
        inside = Path(path).relative_to(place.anchor)
        link = place / inside
        own_folders(str(link.parent), str(place))
        if not os.path.lexists(link):
            link_to(Path(prepared.folder) / inside, link)


def _new_entries(folder: Path, place: Path) -> Iterator[Path]:
    """The outermost ones."""
    for entry in os.scandir(folder):
        if entry.is_symlink():
            continue
        if not os.path.lexists(Path(place.anchor) / os.path.relpath(entry.path, place)):
            yield Path(entry.path)
        elif entry.is_dir():
            yield from _new_entries(Path(entry.path), place)


def _bytes_of(path: Path) -> int:
    if path.is_file():
        return path.stat().st_size
    files = (Path(folder, name) for folder, _, names in os.walk(path) for name in names)
    return sum(each.lstat().st_size for each in files)
