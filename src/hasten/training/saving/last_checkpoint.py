"""Which checkpoint of a run is the newest, for whoever has to say what it leaves."""

from __future__ import annotations

from collections.abc import Callable

from hasten.checkpoint.saved_checkpoint import Checkpoint
from hasten.errors import StorageFailed
from hasten.facts.events import Event, Resumed, Saved, Started
from hasten.facts.formatting import printable


class LastSaved:
    """A receiver that knows the newest checkpoint of a run. began: whether it has come to train."""

    def __init__(self) -> None:
        self.began = False
        self._newest = 0, ""  # one value: another thread may ask

    def log(self, event: Event) -> None:
        self.began |= isinstance(event, Started | Resumed)
        if isinstance(event, Saved):
            self._newest = event.step, event.path
        elif isinstance(event, Resumed) and event.checkpoint is not None:
            self._newest = event.step, event.checkpoint

    def close(self) -> None:
        """Nothing to close."""

    @property
    def told(self) -> str:
        step, path = self._newest
        return f"step {step:,} is saved and verified in {path}" if path else "no step was saved yet"

    def told_of(self, found: Callable[[], list[Checkpoint]]) -> str:
        """The same, where the run ended or hangs before it could tell what was saved last."""
        try:
            newest = next(iter(found()), None)
        except StorageFailed:
            return self.told
        if newest is None or newest.step <= self._newest[0]:
            return self.told
        return f"step {newest.step:,} is saved in {newest.path}"


def what_is_left(saved: str, way_on: str) -> str:
    """What a run that ended too soon leaves, and the command that goes on with it."""
    return printable(f"{saved}; go on with  {way_on}")
