"""What code a job runs: a digest of the user's own modules, and of hasten's.

Whoever changes a module that the job imports has another job, though its file is the same. So all that the process has
loaded from files of nobody's library counts: what lies outside of the standard library and of the folders that packages
are installed into. An editable install of hasten is changed without a change of its version, so its files count too.

What is imported later, inside a function that runs in the first step, has not been loaded yet, and is not seen.
"""

from __future__ import annotations

import hashlib
import os
import site
import stat
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

HASTEN = Path(__file__).resolve().parents[2]
_INSTALLED_INTO = ("site-packages", "dist-packages")
_GONE = "gone"
_PIECE = 1 << 20


def digest_of_sources(job: str) -> str:
    """Of what this process has loaded, whatever its place: a project that is moved stays what it was.

    job: its name; where it is in a package, all of that counts, wherever it is installed."""
    digest = hashlib.sha256()
    for name, file in (*_own_modules(job.rpartition(":")[0].partition(".")[0]), *_files_of_hasten()):
        digest.update(f"{name!a} {_digest_of(file)}\n".encode())
    return digest.hexdigest()[:16]


def _own_modules(package: str) -> Iterator[tuple[str, str]]:
    """Name and file of every module of the user's, by name, and of those in a package."""
    libraries, loaded = _folders_of_libraries(), sys.modules.copy()
    pythons_own = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    for name in sorted(name for name in loaded if type(name) is str and name != "__main__"):
        module = loaded[name]
        # A module can be anything, and one that loads itself late would do so when it is asked for what it lacks.
        file = vars(module).get("__file__") if issubclass(type(module), ModuleType) else None
        if type(file) is not str:
            continue
        # Debian keeps a file of the standard library in /etc, and a link in its place.
        is_library = file.startswith(pythons_own) or _is_in(file, libraries)
        if name.partition(".")[0] == package or not is_library:
            yield name, file


def _folders_of_libraries() -> tuple[str, ...]:
    names = ("stdlib", "platstdlib", "purelib", "platlib")
    folders = [*map(sysconfig.get_path, names), *site.getsitepackages(), site.getusersitepackages(), str(HASTEN)]
    return tuple(os.path.join(os.path.realpath(folder), "") for folder in folders)


def _is_in(file: str, folders: tuple[str, ...]) -> bool:
    try:
        place = os.path.realpath(file)
    except ValueError:  # a name that no file can have
        return False
    return place.startswith(folders) or any(part in _INSTALLED_INTO for part in place.split(os.sep))


def _files_of_hasten() -> Iterator[tuple[str, str]]:
    for path in sorted(HASTEN.rglob("*")):
        if path.suffix in (".py", ".c"):
            yield path.relative_to(HASTEN).as_posix(), str(path)


def _digest_of(file: str) -> str:
    """Of its content. One that cannot be read is like any other such, and no file (a pipe, a folder) is not read."""
    digest = hashlib.sha256()
    try:
        with open(file, "rb", opener=_without_waiting) as source:
            if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):
                return _GONE
            while piece := source.read(_PIECE):
                digest.update(piece)
    except (OSError, ValueError):
        return _GONE
    return digest.hexdigest()


def _without_waiting(file: str, flags: int) -> int:
    """A pipe that nobody writes into would be waited for."""
    return os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
