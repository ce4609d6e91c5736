"""A process that trains one run in a folder, tells every step, and can be killed at any instant.

It is a new interpreter, as `hasten train` is one, and no copy of a process that has loaded torch already: two copies
share more than two commands do, such as the seed by which Python hashes text, which decides the order of a set. It has
a session of its own: an interrupt from the keyboard does not reach it, and all that it has started is killed at once.

What it is to do is an errand, told as JSON, and it sends JSON messages; cli/prove/resume_worker.py is its other side.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Pipe, wait
from pathlib import Path
from typing import Any, Protocol

from hasten.errors import Hang, HastenError, OutOfMemory, UserCodeFailed
from hasten.facts.machine import killed_for_memory
from hasten.training.probes.stacks import ask, standing
from hasten.tune.trials.messages import Garbled, Messages
from hasten.tune.trials.output_tail import LAST_WORDS, Tail, how_it_ended
from hasten.tune.trials.process_tree import descendants, resident_bytes, watch_over
from hasten.tune.trials.trial_outcome import Told

KILLED_SECONDS = 60.0  # that the kernel may take to let go of what was killed: a device can hold it
LOOK_SECONDS = 0.05  # between two looks at a process that tells nothing
LONGEST_SCRATCH = 60  # characters: loader workers make sockets below, and those of Linux have paths of at most 107
_PAUSE_SECONDS = 0.002


@dataclass(frozen=True, kw_only=True, slots=True)
class Errand:
    """job: its name. plan: a path. folder: of the run. goes_on: whether to resume it. steps: after which it is asked to
    end as by a scheduler, unless it is planned to end before. save_every: steps."""

    job: str
    plan: str | None
    folder: str
    goes_on: bool
    steps: int
    save_every: int


class Child(Protocol):
    """A process that was begun. subprocess.Popen is one."""

    @property
    def pid(self) -> int: ...
    def poll(self) -> int | None: ...


Begin = Callable[[Mapping[str, Any], Sequence[int], int, Mapping[str, str]], Child]
"""(errand and more, descriptors to leave open, where it prints, environment) -> a process in a session of its own."""


def interpreter(program: str) -> Begin:
    """Begins a new interpreter. program: a function, package.module:function, that is given the errand."""
    module, _, function = program.partition(":")
    text = (
        "import json, sys; told = json.loads(sys.argv[1]); sys.path[:], sys.argv[:] = told['path'], told['arguments']; "
        f"from {module} import {function}; {function}(told)"
    )

    def begin(
        told: Mapping[str, Any], descriptors: Sequence[int], output: int, environment: Mapping[str, str]
    ) -> Child:
        flags = [*("-O" for _ in range(sys.flags.optimize)), *(f"-W{option}" for option in sys.warnoptions)]
        return subprocess.Popen(
            [sys.executable, *flags, "-c", text, json.dumps(told)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            pass_fds=descriptors,
            env=dict(environment),
            start_new_session=True,
        )

    return begin


class RunProcess:
    """Begun when made; end() it whatever happens.

    All instants are those of the monotonic clock. loaded_at: all libraries were; going_at: it was about to take the
    step after first_step, which is 0 at the beginning of a run. step: the last one that it told; total_steps: that are
    planned, None as long as nobody knows. complete: whether the run has come to its planned end; None before it has
    ended.
    """

    def __init__(self, errand: Errand, begin: Begin, scratch: Path) -> None:
        self.loaded_at: float | None = None
        self.going_at: float | None = None
        self.first_step = self.step = 0
        self.total_steps: int | None = None
        self.complete: bool | None = None
        self.exit_code: int | None = None
        self._failure: HastenError | None = None
        self._killed_before = killed_for_memory()
        ours, theirs = Pipe()
        self._report, their_report = Pipe(duplex=False)
        reading, writing = os.pipe()
        self._messages, self._tail = Messages(ours), Tail(reading)
        self._ended: int | None = None  # a descriptor that can be read then; where there is none, it is looked at
        ends = (theirs.fileno(), their_report.fileno())
        told = asdict(errand) | {"line": ends[0], "report": ends[1], "parent": os.getpid()}
        told |= {"path": sys.path, "arguments": sys.argv}
        self.began_at = self.heard_at = time.monotonic()
        try:
            self._child = begin(told, ends, writing, environment_in(scratch))
        except BaseException:
            self._close()
            raise
        finally:
            theirs.close()
            their_report.close()
            os.close(writing)
        self._ended = watch_over(self._child.pid)

    def listen(self, seconds: float) -> None:
        """Until it tells something or ends, or for so many seconds. Raises what has made it fail."""
        ends = [end.fileno() for end in (self._messages, self._tail) if not end.ended]
        if self._ended is not None:
            ends.append(self._ended)
        wait(ends, max(min(seconds, LOOK_SECONDS), 0.0))
        self._settle()

    def kill(self) -> bool:
        """It and all that it has started, at once. False where it had ended by itself. Raises what made it fail before,
        and Hang where the kernel does not let go of it."""
        self._kill_all()
        self._settle(expected=-signal.SIGKILL)
        return self.exit_code == -signal.SIGKILL

    def end(self) -> None:
        """Kill what is left of it; nothing of it is open afterwards."""
        try:
            if self.complete is None or self.exit_code is None:
                self._kill_all()
        finally:
            self._close()

    def _settle(self, expected: int | None = None) -> None:
        """Take in what it has told, and whether it has ended. expected: the exit code that is no failure."""
        code = self._child.poll()  # first: what it told before its end is there now
        self._hear()
        self.exit_code = code
        if self._failure is not None:
            raise self._failure
        if code is not None and code != expected and self.complete is None:
            raise self._died(code)

    def _kill_all(self) -> None:
        below = descendants(self._child.pid)
        with suppress(ProcessLookupError, PermissionError):  # PermissionError: macOS, for one that has ended
            os.killpg(self._child.pid, signal.SIGKILL)
        for pid in below:  # those that have left its session
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        until = time.monotonic() + KILLED_SECONDS
        while self._child.poll() is None or any(map(resident_bytes, below)):  # it may write until then
            if time.monotonic() > until:
                raise Hang(
                    "a process that was killed does not end", fix="look at what its device or its disk waits for"
                )
            wait([], _PAUSE_SECONDS)

    def hung(self, seconds: float) -> Hang:
        """The error for a process that has told nothing for so long."""
        where = standing(ask(self._child.pid, self._report))
        fix = "train it once to see where it stands: hasten train"
        return Hang(f"a process that trains has taken no step for {seconds:,.0f} s; {where}", fix=fix)

    def _hear(self) -> None:
        self._tail.read()
        try:
            while (message := self._messages.receive()) is not None:
                self.heard_at = time.monotonic()
                self._take(message)
        except (Garbled, KeyError, TypeError, ValueError) as error:
            self._failure = UserCodeFailed(f"the process that trains sent what nobody had asked it for: {error}")

    def _take(self, message: Mapping[str, Any]) -> None:
        match message["told"]:
            case "loaded":
                self.loaded_at = self.heard_at
            case "going":
                self.going_at, self.total_steps = self.heard_at, message["total_steps"]
                self.first_step = self.step = int(message["step"])
            case "step":
                self.step = int(message["step"])
            case "ended":
                self.complete = bool(message["complete"])
            case "failed":
                self._failure = Told(**message["error"]).as_error()
                if self._failure is None:
                    raise RuntimeError(f"a process that trains failed:\n{message['error']['trace']}")
            case _:
                pass  # a sign of life

    def _died(self, code: int) -> HastenError:
        killed, before = killed_for_memory(), self._killed_before
        if code == -signal.SIGKILL and killed is not None and before is not None and killed > before:
            what = "the system has killed the process that trains, as memory was full"
            return OutOfMemory(what, fix="make the microbatch smaller: hasten explain microbatch")
        said = self._tail.text().strip()[-LAST_WORDS:]
        what = f"the process that trains {how_it_ended(code)}" + (f"; it said: {said}" if said else "")
        return UserCodeFailed(what, fix="train it once to see it fail: hasten train")

    def _close(self) -> None:
        for end in (self._messages, self._tail, self._report):
            end.close()
        if self._ended is not None:
            os.close(self._ended)
            self._ended = None


def environment_in(scratch: Path) -> dict[str, str]:
    """This process's own, but for a folder for temporary files, which a process that is killed leaves lying, and
    without what Python compiles beside the user's files. Caches are the user's, as they are for `hasten train`."""
    own = {"TMPDIR": str(scratch)} if len(str(scratch)) <= LONGEST_SCRATCH else {}
    return {**os.environ, **own, "PYTHONDONTWRITEBYTECODE": "1"}
