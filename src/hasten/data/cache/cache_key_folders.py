"""Folders whose files decide the key of a cache (cache_key.py), and what must not lie in them.

A folder counts with the name, size and time of every file below it, so that no change of the data is missed. It is for
the same reason that nothing may be written there from run to run: each run would find another key and build anew. That
happens easily, for `ROOT = Path(__file__).parent` is a whole project, in which runs leave their folders.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten.errors import DataFailed, StorageFailed

MOST_ENTRIES = 20_000_000  # files below a folder; more of them is a slip, such as the root of a disk
REMEDY = "give the data set a method cache_key() -> str that changes whenever its samples do"


@dataclass(frozen=True, slots=True)
class Listed:
    """A folder that is part of a data set, and where in the data set it was met."""

    path: str
    place: str

    def holds(self, other: str | os.PathLike[str]) -> bool:
        """Whether a path lies in it, or is the folder itself."""
        return Path(os.path.realpath(other)).is_relative_to(os.path.realpath(self.path))


def lines_below(folder: str, place: str) -> Iterator[bytes]:
    """What counts of every file below a folder. Raises DataFailed when it cannot be listed, or there are too many."""
    try:
        for count, (name, size, changed) in enumerate(entries_below(folder)):
            if count == MOST_ENTRIES:
                what = f"{place} is the folder {folder}, with more than {MOST_ENTRIES} files below it"
                raise DataFailed(what, fix=REMEDY)
            yield f"{len(name)}:{name}:{size}:{changed};".encode("utf-8", "surrogateescape")
    except OSError as error:
        what = f"{place} is the folder {folder}, which cannot be listed: {error.strerror}: {error.filename}"
        raise DataFailed(what, fix="make it readable") from None


def check_outside(caches: str | os.PathLike[str], listed: Sequence[Listed]) -> None:
    """Raises StorageFailed when caches would lie in a folder that decides what they are called."""
    for folder in listed:
        if folder.holds(caches):
            what = (
                f"{folder.place} is the folder {folder.path}, and caches of what lies in it would lie in it too: each "
                "would change what the next run finds there, and be built in vain"
            )
            raise StorageFailed(what, where=str(caches), fix="name a folder outside of it for the cache")


def changed_by_runs(listed: Sequence[Listed]) -> Iterator[str]:
    """What to say of folders that the present one lies in, where runs leave their folders."""
    try:
        here = os.getcwd()
    except FileNotFoundError:  # it was removed, and nothing is written there
        return
    for folder in listed:
        if folder.holds(here):
            yield (
                f"{folder.place} is the folder {folder.path}: whatever changes below it makes another cache, and runs "
                "write into the present folder, which lies there; name only what is read, as in DATA = ROOT / "
                f'"data.npy" outside of functions, or {REMEDY}'
            )


def is_folder(entry: os.DirEntry[str]) -> bool:
    """Whether it is a folder or a link to one; a link in a circle, which the system refuses to follow, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def entries_below(folder: str) -> Iterator[tuple[str, int, int]]:
    """Relative name, size and time of last change (ns) of every file below a folder, sorted within each folder."""
    waiting, met = [folder], set[tuple[int, int]]()
    while waiting:
        here = waiting.pop()
        about = os.stat(here)
        if (about.st_dev, about.st_ino) in met:
            continue  # a link back
        met.add((about.st_dev, about.st_ino))
        with os.scandir(here) as found:
            entries = sorted(found, key=lambda entry: entry.name)
        for entry in entries:
            if is_folder(entry):
                waiting.append(entry.path)
                continue
            try:
                about = entry.stat()
            except OSError:
                about = entry.stat(follow_symlinks=False)  # a link to nothing, or to where nobody may look
            yield os.path.relpath(entry.path, folder), about.st_size, about.st_mtime_ns
