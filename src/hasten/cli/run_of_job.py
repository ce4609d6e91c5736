"""Which job a run was begun by, and the newest run of a job."""

from __future__ import annotations

import json
import os
from pathlib import Path

from hasten.errors import StorageFailed
from hasten.training.run_folder.folder_names import METRICS, has_begun

RUNS = Path("runs")
_FIRST_BYTES = 1 << 16  # of a log, in which its first line is


def job_of(run: Path) -> str | None:
    """The job that a run says it was begun by, or else its log; None where neither tells a name that could stand in a
    command."""
    from hasten.training.run_folder.run_request import asked_in

    try:
        asked = asked_in(run)
    except StorageFailed:  # whoever goes on with it is told
        asked = None
    name = asked.name if asked is not None and asked.name else _name_in_log(run)
    return name if name is not None and _could_be_given(name) else None


def same_job(one: str, other: str) -> bool:
    """Whether two names lead to one function, seen from here."""
    return _led_to(one) == _led_to(other)


def newest_run_of(job: str) -> Path | None:
    """The run of this job in runs/ that was begun last; None where there is none."""
    begin = f"{job.rpartition(':')[2]}-"
    found = [path for path in RUNS.glob(f"{begin}*") if path.name.removeprefix(begin).isdecimal() and has_begun(path)]
    for path in sorted(found, key=lambda path: int(path.name.removeprefix(begin)), reverse=True):
        name = job_of(path)
        if name is not None and same_job(name, job):
            return path
    return None


def _name_in_log(run: Path) -> str | None:
    try:
        with open(run / METRICS, "rb") as file:
            first = file.read(_FIRST_BYTES).partition(b"\n")[0]
        match json.loads(first):
            case {"event": "started", "job": str(name)}:
                return name
    except (OSError, ValueError, RecursionError):
        return None
    return None


def _could_be_given(name: str) -> bool:
    """What Python gave as a name need not be one."""
    place, _, function = name.rpartition(":")
    return bool(place) and function.isidentifier() and not name.startswith("-") and name.isprintable()


def _led_to(name: str) -> tuple[str, str]:
    place, _, function = name.rpartition(":")
    file = place if place.endswith(".py") or "/" in place or os.sep in place else f"{place.replace('.', os.sep)}.py"
    return os.path.realpath(file), function
