"""The folder of a run as it is found: a new one, that of a run, or one with other things. Loads no torch, so that what
cannot be used is told at once."""

from __future__ import annotations

from pathlib import Path

from hasten.checkpoint.files import check_writable, is_leftover, make_folder, names_in
from hasten.checkpoint.locks import run_lock
from hasten.errors import Misconfigured
from hasten.training.run_folder.folder_names import OF_A_RUN


def make_new(path: Path) -> None:
    """Make the folder and prove that it can be written to, before anything slow begins.

    Raises StorageFailed when it cannot, Misconfigured when something is in it already: no run is ever overwritten.
    """
    make_folder(path)
    if names := _lasting(path):
        raise _taken(path, names)
    check_writable(path)


def reopen(path: Path) -> None:
    """Look at the folder of a run that goes on, or that ended before it had begun: then it is empty, or not even there,
    and is made.

    Raises Misconfigured when something else is in it, StorageFailed when it cannot be written to.
    """
    make_folder(path)
    names = _lasting(path)
    if names and not OF_A_RUN & {*names}:
        what = f"there is no run in it, but other things are, such as {names[0]}"
        raise Misconfigured(what, where=str(path), fix="name the folder of a run with --run-dir")
    check_writable(path)


def check_still_empty(path: Path) -> None:
    """Once its lock is held: another run may have trained into the folder between the look at it and the lock.

    Raises Misconfigured.
    """
    if _lasting(path):
        fix = "go on with the run that is in it: --resume; or name another one with --run-dir"
        raise Misconfigured("another run has begun in this folder meanwhile", where=str(path), fix=fix)


def _lasting(path: Path) -> list[str]:
    """What no process has left half made, and no lock is."""
    return [each for each in names_in(path) if each != run_lock.NAME and not is_leftover(each)]


def _taken(path: Path, names: list[str]) -> Misconfigured:
    if OF_A_RUN & {*names}:
        fix = "go on with the run that is in it: --resume; or name another one with --run-dir"
        return Misconfigured("the run folder is not empty", where=str(path), fix=fix)
    what = f"the run folder is not empty: other things than a run are in it, such as {names[0]}"
    return Misconfigured(what, where=str(path), fix="name an empty folder with --run-dir, or one that is not there yet")
