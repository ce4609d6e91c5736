"""Plans on disk: facts.plan_file gives the text, this module writes it.

A plan written by `hasten tune` carries a digest of its own text. So a later search knows which plan it may replace: it
never replaces one that a person has written, or changed since.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

from hasten.checkpoint.files import check_writable, remove_file, write_atomically
from hasten.checkpoint.locks.file_lock import locked
from hasten.checkpoint.storage_errors import failing
from hasten.errors import Misconfigured, StorageFailed
from hasten.facts.plan import Plan
from hasten.facts.plan_file import LARGEST_BYTES, SEAL, is_sealed, plan_to_toml, sealed
from hasten.regular_files import open_regular
from hasten.stop_signals import cleaned_up


def write_plan(plan: Plan, path: str | os.PathLike[str]) -> None:
    """Write the plan as TOML, for hasten.read_plan. It replaces a plan of that name.

    Raises PlanError for what no plan file may hold, StorageFailed when it cannot be written.
    """
    write_atomically(Path(path), plan_to_toml(plan).encode())


def write_found_plan(plan: Plan, path: Path) -> None:
    """Write the plan that a search has found, with its digest. Raises as check_place does."""
    check_place(path)
    write_atomically(path, sealed(plan_to_toml(plan)).encode())


@contextmanager
def held_place(path: Path) -> Iterator[None]:
    """Reserve the path for one search. Raises as check_place does, and Misconfigured if another search has it."""
    check_place(path)
    lock = path.with_name(f".{path.name}.lock")
    with locked(lock, None) as held:
        if not held:
            fix = "wait for it to end, or choose another name with --output"
            raise Misconfigured("another hasten tune is running and will write it", where=str(path), fix=fix)
        with cleaned_up(partial(_remove, lock)):
            yield


def _remove(lock: Path) -> None:
    with suppress(StorageFailed):  # an empty file that stays harms nobody
        remove_file(lock)


def check_place(path: Path) -> None:
    """Check, before a search, that its plan can be written to this path. Nothing is left behind.

    Raises StorageFailed where no file can be written, Misconfigured for a file that no search has written.
    """
    try:
        check_writable(path.parent)
    except StorageFailed as error:
        raise StorageFailed(error.what, where=str(path), fix=error.fix) from error
    if not path.exists():
        return
    with failing("cannot be read", path), open_regular(path) as file:
        text = file.read(LARGEST_BYTES + 1).decode(errors="replace")
    if not is_sealed(text):
        changed = "was changed after hasten tune wrote it"
        what = changed if SEAL in text else "already exists, and hasten tune did not write it"
        raise Misconfigured(what, where=str(path), fix="choose another name with --output, or move it away")
