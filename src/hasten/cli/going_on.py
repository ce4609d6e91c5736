"""What a training that ended too soon leaves, and the command that goes on with it, in one line."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from hasten.cli.shared import Ended
from hasten.errors import Terminated
from hasten.facts.texts import printable

if TYPE_CHECKING:
    from hasten.facts.events import Event


class LastSaved:
    """A receiver that knows the newest checkpoint of a run."""

    def __init__(self) -> None:
        self.began = False
        self._step, self._path = 0, ""

    def log(self, event: Event) -> None:
        from hasten.facts.events import Resumed, Saved, Started

        self.began |= isinstance(event, Started | Resumed)
        if isinstance(event, Saved):
            self._step, self._path = event.step, event.path
        elif isinstance(event, Resumed) and event.checkpoint is not None:
            self._step, self._path = event.step, event.checkpoint

    def close(self) -> None:
        """Nothing to close."""

    @property
    def told(self) -> str:
        return f"step {self._step:,} is saved and verified in {self._path}" if self._path else "no step was saved yet"


@contextmanager
def told_how_to_go_on(last: LastSaved, command: str) -> Iterator[None]:
    """Whatever ends a run that had begun is told with what it leaves. Raises Ended in its place."""
    try:
        yield
    except (Exception, KeyboardInterrupt) as error:
        if not last.began:
            raise
        raise Ended(error, printable(f"{_cause(error)}; {last.told}; go on with  {command}")) from error


def resuming(job: str, folder: Path, plan: Path | None, changes: Mapping[str, object]) -> str:
    """The command that resumes a run as it was started. changes: of fields of the job, by name; None for those not
    given."""
    options = {"plan": plan, **changes}
    given = [(f"--{name.replace('_', '-')}", str(value)) for name, value in options.items() if value is not None]
    return shlex.join(
        ["hasten", "train", job, "--resume", "--run-dir", str(folder), *(part for each in given for part in each)]
    )


def _cause(error: BaseException) -> str:
    if isinstance(error, KeyboardInterrupt):
        return "ended by SIGTERM" if isinstance(error, Terminated) else "ended by Ctrl-C"
    return f"ended by {type(error).__name__}"
