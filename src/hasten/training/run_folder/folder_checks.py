"""Checks of a run's folder before anything slow begins. Loads no torch."""

from __future__ import annotations

from pathlib import Path

from hasten.checkpoint.files import check_writable, is_leftover, make_folder, names_in
from hasten.checkpoint.locks.run_lock import NAME
from hasten.errors import Misconfigured
from hasten.training.run_folder.folder_names import OF_A_RUN

_RESUME = "resume the run in it: --resume; or name another folder with --run-dir"


def make_new(path: Path) -> None:
    """Make the folder of a new run and check that it can be written to.

    Raises StorageFailed when it cannot, Misconfigured when something is in it already: no run is overwritten.
    """
    make_folder(path)
    if names := _lasting(path):
        if OF_A_RUN & {*names}:
            raise Misconfigured("the run folder is not empty", where=str(path), fix=_RESUME)
        what = f"the run folder is not empty: it holds something other than a run, such as {names[0]}"
        raise Misconfigured(what, where=str(path), fix="name an empty folder, or a new one, with --run-dir")
    check_writable(path)


def reopen(path: Path) -> None:
    """Check the folder of a run that is resumed; it may be missing or empty, where the run ended early.

    Raises Misconfigured when something else is in it, StorageFailed when it cannot be written to.
    """
    make_folder(path)
    names = _lasting(path)
    if names and not OF_A_RUN & {*names}:
        what = f"it is not a run folder: it contains {names[0]}"
        raise Misconfigured(what, where=str(path), fix="name a run folder with --run-dir")
    check_writable(path)


def _lasting(path: Path) -> list[str]:
    """The names in it, without the lock and unfinished files."""
    return [each for each in names_in(path) if each != NAME and not is_leftover(each)]
