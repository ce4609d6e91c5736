"""The newest checkpoint of a run, for the message that a run ends with."""

from __future__ import annotations

import os
from pathlib import Path

from hasten.checkpoint.saved_checkpoint import checkpoints_in
from hasten.errors import StorageFailed
from hasten.facts.events import Event, Resumed, Saved, Started
from hasten.facts.formatting import printable
from hasten.training.run_folder.folder_names import CHECKPOINTS


class LastSaved:
    """A receiver that knows the newest checkpoint of the run in this folder. began: whether the run has begun to
    train."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._home = folder, folder.absolute()  # the job's code may change the working directory
        self.began = False
        self._place: os.stat_result | None = None  # of the folder, when the run began
        self._newest = 0, ""  # one value, as another thread may read it

    def log(self, event: Event) -> None:
        if isinstance(event, Started | Resumed):
            self.began, self._place = True, self._found()
        if isinstance(event, Saved):
            self._newest = event.step, event.path
        elif isinstance(event, Resumed) and event.checkpoint is not None:
            self._newest = event.step, event.checkpoint

    def close(self) -> None:
        """Nothing to close."""

    @property
    def is_in_place(self) -> bool:
        """Whether the folder of this name is still that of the run: it can be moved, and another run begin there."""
        found = self._found()
        return self._place is None or (found is not None and os.path.samestat(found, self._place))

    @property
    def in_words(self) -> str:
        """The newest checkpoint."""
        step, path = self._newest
        if not self.is_in_place:
            return f"step {step:,} was saved" if path else "no step was saved yet"
        try:
            newest = next(iter(checkpoints_in(self._home / CHECKPOINTS)), None)  # it may not be reported yet
        except StorageFailed:
            newest = None
        if newest is not None and newest.step > step:
            return f"step {newest.step:,} is saved in {self.folder / CHECKPOINTS / newest.path.name}"
        return f"step {step:,} is saved and verified in {path}" if path else "no step was saved yet"

    def _found(self) -> os.stat_result | None:
        try:
            return os.stat(self._home)
        except OSError:
            return None


def what_is_left(last: LastSaved, way_on: str) -> str:
    """What a run that ended early leaves, and the command that resumes it."""
    if not last.is_in_place:
        return printable(f"{last.in_words}; {last.folder} was moved: resume it in its new place, with --run-dir")
    return printable(f"{last.in_words}; resume with  {way_on}")
