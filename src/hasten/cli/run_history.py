"""The runs of a job: which is the newest, which job began a run, and the command that resumes it."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.application import RunEnded
from hasten.errors import RankFailed, StorageFailed, Terminated
from hasten.facts.ranks import LAUNCHER, launched
from hasten.report.terminal.output import Lines
from hasten.training.run_folder.folder_names import has_begun
from hasten.training.saving.last_checkpoint import LastSaved

if TYPE_CHECKING:
    from hasten.training.run_folder.run_request import RunRequest

RUNS = Path("runs")


def job_of(run: Path) -> str | None:
    """The job that began a run; None if its folder names none that a command could take."""
    asked = _asked(run)
    place, _, function = ("" if asked is None else asked.name).rpartition(":")
    name = f"{place}:{function}"
    valid = bool(place) and function.isidentifier() and not name.startswith("-") and name.isprintable()
    return name if valid else None


def words_of(run: Path) -> list[str]:
    """--set and -- of the command that began a run."""
    asked = _asked(run)
    return [] if asked is None else asked.job_options.words


def _asked(run: Path) -> RunRequest | None:
    from hasten.training.run_folder.run_request import asked_in

    try:
        return asked_in(run)
    except StorageFailed:  # whoever resumes it sees the error
        return None


def same_job(one: str, other: str) -> bool:
    """Whether two names refer to one function, seen from the working directory."""
    return _resolved(one) == _resolved(other)


def _resolved(name: str) -> tuple[str, str]:
    place, _, function = name.rpartition(":")
    file = place if place.endswith(".py") or "/" in place or os.sep in place else f"{place.replace('.', os.sep)}.py"
    return os.path.realpath(file), function


def with_receivers_beside(asked: RunRequest, job: str) -> tuple[RunRequest, list[str]]:
    """With those receivers alone whose file is beside the job's, and a note for each other. The folder of a run may
    come from elsewhere, and names no other code that is loaded."""
    beside = os.path.dirname(_resolved(job)[0])
    own = tuple(each for each in asked.receivers if os.path.dirname(_resolved(each)[0]) == beside)
    why = "is not taken from the run, because its file is not in the job's folder: give the option again"
    return replace(asked, receivers=own), [f"--receiver {each} {why}" for each in asked.receivers if each not in own]


def newest_run_of(job: str) -> Path | None:
    """The newest run of this job in runs/; None where there is none."""
    begin = f"{job.rpartition(':')[2]}-"
    found = [path for path in RUNS.glob(f"{begin}*") if path.name.removeprefix(begin).isdecimal() and has_begun(path)]
    for path in sorted(found, key=lambda path: int(path.name.removeprefix(begin)), reverse=True):
        name = job_of(path)
        if name is not None and same_job(name, job):
            return path
    return None


def resume_command(job: str, folder: Path, allowed: Sequence[str] = ()) -> str:
    """The command that resumes a run with the options that its folder records. allowed: changes that the newest
    checkpoint may not have yet."""
    changes = [part for key in allowed for part in ("--allow-change", key)]
    ranks = ["--nproc", str(launched().all.size)] if LAUNCHER in os.environ else []
    return shlex.join(["hasten", "train", job, "--resume", "--run-dir", str(folder), *ranks, *changes])


@contextmanager
def says_how_to_resume(last: LastSaved, command: str) -> Iterator[None]:
    """Whatever ends a run that had begun is raised as RunEnded, with its newest checkpoint and the command that resumes
    it."""
    try:
        yield
    except BaseException as error:
        if not last.began:
            raise
        raise RunEnded(error, what_is_left(error, last, command)) from error


def what_is_left(error: BaseException, last: LastSaved, command: str) -> Lines:
    """Of a run that the error has ended: what is saved, and the command that resumes it."""
    ended = f"by {_cause(error)}; {last.in_words}"
    if not last.is_in_place:
        return [("ended", f"{ended}; {last.folder} was moved: resume it in its new place, with --run-dir")]
    return [("ended", ended), ("next", command)]


def _cause(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return error.by if isinstance(error, Terminated) else "Ctrl-C"
    return error.where if isinstance(error, RankFailed) else type(error).__name__
