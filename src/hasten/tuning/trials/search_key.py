"""The key of a search: a digest of all that a trial's result depends on, by which a later search resumes it.

Counted are the code that is loaded (hasten's, and all from outside of installed packages), the shapes of model and
data, the length of the run, the machine and the versions. Not included are the values in the data, the versions of
other libraries, and what a function imports later.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import sys
import sysconfig
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from types import ModuleType
from typing import Any

from hasten.facts.plan import ProvenOn
from hasten.regular_files import read_regular

COUNTED = ("fingerprint", "proven_on", "machine", "total_steps", "total_epochs", "evaluations", "sources")
HASTEN = Path(__file__).resolve().parents[2]
_INSTALLED_INTO = frozenset({"site-packages", "dist-packages"})


def key_of(
    answer: Mapping[str, Any], environment: Mapping[str, str], *, busy: bool = False, options: Sequence[str] = ()
) -> str:
    """answer: of an arm with the baseline to "survey". busy: whether trials were measured however much other programs
    used the processor. options: --set and sys.argv of the job, as words."""
    digest = hashlib.sha256()
    for part in (
        *(answer[name] for name in COUNTED),
        dict(environment),
        *(["busy"] if busy else []),
        *([[*options]] if options else []),
    ):
        digest.update(json.dumps(part, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()[:16]


def environment_of(proven_on: ProvenOn) -> dict[str, str]:
    """Name -> version of what everything runs on."""
    return {"hasten": version("hasten"), "python": platform.python_version(), "torch": proven_on.torch}


def digest_of_sources() -> str:
    """Of what this process has loaded, whatever its place: a project that is moved keeps its digest."""
    digest = hashlib.sha256()
    of_hasten = (path for path in sorted(HASTEN.rglob("*")) if path.suffix in (".py", ".c"))
    hastens = ((path.relative_to(HASTEN).as_posix(), path) for path in of_hasten)
    for name, file in (*_own_modules(), *hastens):
        try:
            content = hashlib.sha256(read_regular(file)).hexdigest()
        except (OSError, ValueError):
            content = "unreadable"
        digest.update(f"{name!a} {content}\n".encode())
    return digest.hexdigest()[:16]


def _own_modules() -> Iterator[tuple[str, Path]]:
    """Name and file of every module that is no library's, by name."""
    standard = tuple(os.path.join(sysconfig.get_path(name), "") for name in ("stdlib", "platstdlib"))
    for name, module in sorted(sys.modules.copy().items()):
        # Of a module that loads itself late, an attribute that it lacks would load it.
        file = vars(module).get("__file__") if isinstance(module, ModuleType) else None
        if not isinstance(file, str) or name == "__main__":
            continue
        place = os.path.realpath(file)
        parts = place.split(os.sep)
        # Debian has a file of the standard library in /etc, and a link in its place.
        is_library = file.startswith(standard) or place.startswith(standard) or not _INSTALLED_INTO.isdisjoint(parts)
        if not (is_library or Path(place).is_relative_to(HASTEN)):
            yield name, Path(file)
