"""Arms of a trial: processes that each hold the job under one plan, of which one runs while all others are stopped.

Every arm is a copy of one process that has loaded torch and hasten and nothing of the user's, so that it begins at once
and inherits neither data nor settings. It has a session of its own, is stopped with all that it started when its window
is over, and is killed with all of it at the end, also when this process is killed (guard.py).

Nothing that an arm does ends the search: it fails alone, as an ArmFailed with its class (fate.py).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from tempfile import TemporaryDirectory
from typing import Any

from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_to_toml
from hasten.measure.paired import Window
from hasten.tune.fate import ArmFailed, Fate
from hasten.tune.guard import guarded, signal_group
from hasten.tune.libraries import libraries_of
from hasten.tune.serve import serve

KEPT_OUTPUT = 1 << 16  # bytes of what an arm has printed last
LONGEST_ANSWER = 1 << 26  # bytes
END_SECONDS = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """Seconds that an arm may take: to be built, and for one request, such as a window."""

    build_seconds: float = 300.0
    window_seconds: float = 120.0


class Arm:
    """One process with the job under one plan. Made by Arms.start; stopped outside of its own calls.

    turns: seconds of every wait for an epoch's first batch but the run's first, which is first_turn.
    peak_bytes: the most memory held, as its last window said.
    """

    def __init__(self, name: str, process: BaseProcess, line: Connection, limits: Limits, tail: Tail) -> None:
        self.name, self._process, self._line, self._limits, self._tail = name, process, line, limits, tail
        self.turns, self.first_turn, self.losses, self.peak_bytes = list[float](), None, list[float](), 0
        self.build_seconds: float = self._answer(limits.build_seconds)["seconds"]
        self._signal(signal.SIGSTOP)

    def window(self, steps: int) -> Window:
        """Raises ArmFailed for whatever keeps it from a window, and for one without a step (trap 48)."""
        found = self.ask("window", steps=steps)
        if not found["steps"]:
            raise ArmFailed(self.name, Fate.NOTHING_RAN, "not one optimizer step was taken")
        for epoch, seconds in found["turns"]:
            if epoch:
                self.turns.append(seconds)
            elif self.first_turn is None:
                self.first_turn: float | None = seconds
        self.losses += found["losses"]
        self.peak_bytes = found["peak_bytes"]
        return Window(arm=self.name, steps=found["steps"], seconds=found["seconds"])

    def ask(self, do: str, limit_seconds: float | None = None, **fields: Any) -> dict[str, Any]:
        """The answer to one of serve.REQUESTS. Raises ArmFailed for whatever keeps it from one."""
        self._signal(signal.SIGCONT)
        try:
            self._line.send_bytes(json.dumps({"do": do, **fields}).encode())
            return self._answer(limit_seconds or self._limits.window_seconds)
        except BrokenPipeError:
            raise self._died() from None
        finally:
            self._signal(signal.SIGSTOP)

    @property
    def printed(self) -> str:
        """The end of what it has printed."""
        return self._tail.text()

    def _answer(self, seconds: float) -> dict[str, Any]:
        if not self._line.poll(seconds):
            raise ArmFailed(self.name, Fate.HUNG, f"no answer within {seconds:.0f} s")
        try:
            answer = json.loads(self._line.recv_bytes(LONGEST_ANSWER))
        except (EOFError, OSError):
            raise self._died() from None
        if "failed" in answer:
            raise ArmFailed(self.name, Fate(answer["failed"]), answer["message"])
        return answer

    def _died(self) -> ArmFailed:
        self._process.join(END_SECONDS)
        code = self._process.exitcode or 0
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        return ArmFailed(self.name, Fate.CRASHED, how)

    def _signal(self, number: signal.Signals) -> None:
        if self._process.pid is not None and self._process.is_alive():
            signal_group(self._process.pid, number)


class Arms:
    """Starts the arms of a search. job: its name, path/file.py:function, which every arm loads for itself."""

    def __init__(self, job: str, limits: Limits | None = None) -> None:
        self._job, self._limits = job, limits or Limits()
        self._context = multiprocessing.get_context("forkserver")
        # What torch and hasten load when a run is built is loaded once, for all arms.
        self._context.set_forkserver_preload(["hasten.tune.serve", "torch._dynamo", *libraries_of(job)])

    @contextmanager
    def start(self, name: str, plan: Plan) -> Iterator[Arm]:
        """Build the job by a plan in a process of its own, of which nothing is left afterwards. Raises ArmFailed when
        that fails."""
        line, theirs = self._context.Pipe()
        reading, writing = self._context.Pipe(duplex=False)
        # Caches and compiled code are made in a folder of its own: no arm finds another's, or leaves one (trap 49).
        with TemporaryDirectory(prefix="hasten-arm-", ignore_cleanup_errors=True) as folder:
            given = (theirs, writing, self._job, plan_to_toml(plan), environment_within(folder))
            process = self._context.Process(target=serve, args=given, daemon=False)
            process.start()
            theirs.close()
            writing.close()
            assert process.pid is not None
            try:
                with guarded(process.pid):
                    yield Arm(name, process, line, self._limits, Tail(reading))
            finally:
                process.kill()  # where it had no group yet
                process.join(END_SECONDS)
                line.close()


def environment_within(folder: str) -> dict[str, str]:
    """This process's environment, with every place for caches and temporary files inside a folder."""
    ours = ("HASTEN_CACHE", "TMPDIR", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR")
    return {**os.environ, **dict.fromkeys(ours, folder)}


class Tail:
    """Keeps the end of what comes out of a pipe, read by a thread until its other ends are closed."""

    def __init__(self, pipe: Connection) -> None:
        self._pipe, self._kept, self._lock = pipe, b"", threading.Lock()
        threading.Thread(target=self._read, daemon=True).start()

    def text(self) -> str:
        with self._lock:
            return self._kept.decode("utf-8", "replace")

    def _read(self) -> None:
        with self._pipe:
            while found := os.read(self._pipe.fileno(), KEPT_OUTPUT):
                with self._lock:
                    self._kept = (self._kept + found)[-KEPT_OUTPUT:]
