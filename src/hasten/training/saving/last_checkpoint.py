"""The newest checkpoint of a run, for the message that a run ends with."""

from __future__ import annotations

from collections.abc import Callable

from hasten.checkpoint.saved_checkpoint import Checkpoint
from hasten.errors import StorageFailed
from hasten.facts.events import Event, Resumed, Saved, Started
from hasten.facts.formatting import printable


class LastSaved:
    """A receiver that knows the newest checkpoint of a run. began: whether the run has begun to train."""

    def __init__(self) -> None:
        self.began = False
        self._newest = 0, ""  # one value, as another thread may read it

    def log(self, event: Event) -> None:
        self.began |= isinstance(event, Started | Resumed)
        if isinstance(event, Saved):
            self._newest = event.step, event.path
        elif isinstance(event, Resumed) and event.checkpoint is not None:
            self._newest = event.step, event.checkpoint

    def close(self) -> None:
        """Nothing to close."""

    def in_words(self, found: Callable[[], list[Checkpoint]]) -> str:
        """The newest checkpoint in words. found: lists the folder, which may hold one that was not reported yet."""
        step, path = self._newest
        try:
            newest = next(iter(found()), None)
        except StorageFailed:
            newest = None
        if newest is not None and newest.step > step:
            return f"step {newest.step:,} is saved in {newest.path}"
        return f"step {step:,} is saved and verified in {path}" if path else "no step was saved yet"


def what_is_left(saved: str, way_on: str) -> str:
    """What a run that ended early leaves, and the command that resumes it."""
    return printable(f"{saved}; resume with  {way_on}")
