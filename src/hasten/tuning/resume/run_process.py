"""A process that trains one run in a folder, reports every step, and can be killed at any instant.

It is a new interpreter, as `hasten train` is one: two copies of one process would share more than two commands do, such
as the seed by which Python hashes text. cli/prove/resume_worker.py is what runs in it.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hasten.errors import Hang, HastenError, OutOfMemory, UserCodeFailed
from hasten.facts.machine import killed_for_memory
from hasten.tuning.trials.child_process import ChildProcess, Messages
from hasten.tuning.trials.process_tree import ended_for_memory, how_it_ended
from hasten.tuning.trials.trial_outcome import SentError

START_METHOD = "spawn"
KILLED_SECONDS = 60.0  # that the kernel may take to release what was killed: a device can hold it
LONGEST_SCRATCH = 60  # characters: loader workers make sockets below, and those of Linux have paths of at most 107


@dataclass(frozen=True, kw_only=True, slots=True)
class Errand:
    """job: its name. plan: a path. folder: of the run. resumes: whether to resume it. steps: after which it is asked to
    end as by a scheduler, unless its planned end comes before. save_every: steps."""

    job: str
    plan: str | None
    folder: str
    resumes: bool
    steps: int
    save_every: int


Train = Callable[[Errand, Messages], None]
"""What the process does: train, and send messages that RunProcess understands."""


class RunProcess:
    """Starts when made; end() it whatever happens.

    All instants are those of the monotonic clock. loaded_at: all libraries were; going_at: it was about to take the
    step after first_step, which is 0 at the beginning of a run. step: the last one that it reported; total_steps: that
    are planned, None as long as that is unknown. complete: whether the run has come to its planned end; None before it
    has ended.
    """

    def __init__(self, errand: Errand, train: Train, scratch: Path) -> None:
        self.loaded_at: float | None = None
        self.going_at: float | None = None
        self.first_step = self.step = 0
        self.total_steps: int | None = None
        self.complete: bool | None = None
        self.exit_code: int | None = None
        self._failure: HastenError | None = None
        self._killed_before = killed_for_memory()
        self.began_at = self.heard_at = time.monotonic()
        context = multiprocessing.get_context(START_METHOD)
        self._child = ChildProcess(context, _live, train, errand, environment_in(scratch))

    def listen(self, seconds: float) -> None:
        """Wait until it sends something or ends, or for so many seconds. Raises what has made it fail."""
        self._child.listen(seconds)
        self._settle()

    def kill(self) -> bool:
        """It and all that it has started, at once. False where it had ended by itself. Raises what made it fail before,
        and Hang where the kernel does not release it."""
        self._kill_all()
        self._settle(expected=-signal.SIGKILL)
        return self.exit_code == -signal.SIGKILL

    def end(self) -> None:
        """Kill what is left of it; nothing of it is open afterwards."""
        try:
            if self.complete is None or self.exit_code is None:
                self._kill_all()
        finally:
            self._child.close()

    def hung(self, seconds: float) -> Hang:
        """The error for a process that has reported nothing for so long."""
        what = f"a training process has taken no step for {seconds:,.0f} s; {self._child.standing()}"
        return Hang(what, fix="run hasten train to see where it hangs")

    def _settle(self, expected: int | None = None) -> None:
        """Read its messages, and whether it has ended. expected: the exit code that is no failure."""
        code = self._child.exit_code  # first: what it sent before its end is there now
        while (message := self._child.messages.receive()) is not None:
            self.heard_at = time.monotonic()
            self._take(message)
        self.exit_code = code
        if self._failure is not None:
            raise self._failure
        if code is not None and code != expected and self.complete is None:
            raise self._died(code)

    def _take(self, message: Mapping[str, Any]) -> None:
        match message["event"]:
            case "loaded":
                self.loaded_at = self.heard_at
            case "going":
                self.going_at, self.total_steps = self.heard_at, message["total_steps"]
                self.first_step = self.step = message["step"]
            case "step":
                self.step = message["step"]
            case "ended":
                self.complete = message["complete"]
            case "failed":
                self._failure = SentError(**message["error"]).as_error()
                if self._failure is None:
                    raise RuntimeError(f"a training process failed:\n{message['error']['trace']}")
            case _:
                pass  # a sign of life

    def _died(self, code: int) -> HastenError:
        if ended_for_memory(code, self._killed_before):
            what = "the system killed the training process because memory was full"
            return OutOfMemory(what, fix="make the microbatch smaller: hasten explain microbatch")
        what = f"the training process {how_it_ended(code)}"
        return UserCodeFailed(what, fix="run hasten train to see it fail")

    def _kill_all(self) -> None:
        if not self._child.kill(KILLED_SECONDS):
            raise Hang("a killed process does not exit", fix="check its device and its disk")


def environment_in(scratch: Path) -> dict[str, str]:
    """What differs from this process's own: a folder for temporary files, which a process that is killed leaves behind,
    and no bytecode beside the user's files. Caches are the user's, as they are for `hasten train`."""
    own = {"TMPDIR": str(scratch)} if len(str(scratch)) <= LONGEST_SCRATCH else {}
    return {**own, "PYTHONDONTWRITEBYTECODE": "1"}


def _live(messages: Messages, train: Train, errand: Errand, environment: Mapping[str, str]) -> None:
    os.environ.update(environment)
    tempfile.tempdir = None  # for TMPDIR to be read
    train(errand, messages)
