"""What a training that ended too soon leaves, and the command that goes on with it, in one line."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hasten.cli.application import Ended
from hasten.errors import RankFailed, Terminated
from hasten.facts.formatting import printable
from hasten.facts.ranks import LAUNCHER, launched
from hasten.training.run_folder.folder_names import CHECKPOINTS
from hasten.training.saving.last_checkpoint import LastSaved, what_is_left


@contextmanager
def told_how_to_go_on(last: LastSaved, folder: Path, command: str) -> Iterator[None]:
    """Whatever ends a run that had begun is told with what it leaves. Raises Ended in its place."""
    from hasten.checkpoint.saved_checkpoint import checkpoints_in

    try:
        yield
    except BaseException as error:
        if not last.began:
            raise
        saved = last.told_of(lambda: checkpoints_in(folder / CHECKPOINTS))
        raise Ended(error, printable(f"{_cause(error)}; {what_is_left(saved, command)}")) from error


def resuming(job: str, folder: Path, allowed: Sequence[str] = ()) -> str:
    """The command that resumes a run as it was asked for, which its folder knows. allowed: changes that the newest
    checkpoint need not have yet."""
    changes = [part for key in allowed for part in ("--allow-change", key)]
    ranks = ["--nproc", str(launched().all.size)] if LAUNCHER in os.environ else []
    return shlex.join(["hasten", "train", job, "--resume", "--run-dir", str(folder), *ranks, *changes])


def _cause(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return f"ended by {error.by if isinstance(error, Terminated) else 'Ctrl-C'}"
    return f"ended by {error.where if isinstance(error, RankFailed) else type(error).__name__}"
