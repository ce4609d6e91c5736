"""The process of one trial, forked from a server that has loaded torch and hasten and nothing of the user's.

So a trial starts at once and inherits neither data nor settings. It has a session of its own: an interrupt from the
keyboard reaches who searches, and nobody else. It is stopped outside of its windows with all that it has started, and
killed with it at its end. Where the process that searches ends by whatever way, multiprocessing's fork server ends, and
the kernel kills the trials.

What is not held: a process that the job has made a daemon of, with a session and a parent of its own.
"""

from __future__ import annotations

import faulthandler
import io
import multiprocessing
import os
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from hasten.checkpoint.folders.process_folder import process_folder
from hasten.training.probes.stacks import ask, signal_to_ask_by, standing
from hasten.tune.trials.messages import Messages
from hasten.tune.trials.output_tail import Tail
from hasten.tune.trials.process_tree import continue_all, die_with, kill_all, stop_all

END_SECONDS = 10.0  # that the kernel may take to let go of what was killed
_OURS = ("hasten.tune.trials.trial_requests", "torch._dynamo")  # what torch and hasten load when a run is built


@dataclass(frozen=True, kw_only=True, slots=True)
class Assignment:
    """What a trial's process is to do. plan: TOML."""

    job: str
    plan: str
    environment: Mapping[str, str]
    path: Sequence[str]
    arguments: Sequence[str]
    folder: str | None


class NotStarted(Exception):
    """There is no process; the words say why."""


def start_fork_server(libraries: Sequence[str] = ()) -> Any:
    """The context of the server, which loads torch meanwhile. libraries: that it loads too, where it is not running."""
    context: Any = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([*_OURS, *libraries])
    from multiprocessing.forkserver import ensure_running

    ensure_running()
    return context


class TrialProcess:
    """Started when made; end() it whatever happens. Raises NotStarted.

    pid: also the number of its session. folder: of its own. messages: of serve.py.
    """

    def __init__(self, assignment: Assignment, folder: str, libraries: Sequence[str]) -> None:
        self.folder, self._is_over, self._owner = folder, False, os.getpid()
        ours, theirs = multiprocessing.Pipe()
        output, their_output = multiprocessing.Pipe(duplex=False)
        self._stacks, their_stacks = multiprocessing.Pipe(duplex=False)
        self.messages, self._tail = Messages(ours), Tail(os.dup(output.fileno()))
        output.close()
        try:
            context = start_fork_server(libraries)
            self._process = context.Process(target=_live, args=(asdict(assignment), theirs, their_output, their_stacks))
            self._process.start()
        except (OSError, EOFError) as error:
            self._close()
            raise NotStarted(f"the process that trials are forked from has ended: {error}") from None
        finally:
            for end in (theirs, their_output, their_stacks):
                end.close()
        self.pid: int = self._process.pid

    def listen(self, seconds: float) -> None:
        """Until it says something or ends, or for so many seconds; what it printed is read."""
        ends = [self._process.sentinel, *(end.fileno() for end in (self.messages, self._tail) if not end.ended)]
        wait(ends, seconds)
        self._tail.read()

    @property
    def exit_code(self) -> int | None:
        """Below 0 the number of a signal; None as long as it lives."""
        return self._process.exitcode

    def exit_code_soon(self) -> int | None:
        """The exit code of one that has closed its connection; None where it lives on all the same."""
        wait([self._process.sentinel], END_SECONDS)
        return self._process.exitcode

    def stop(self) -> None:
        """It and all that it has started."""
        if not self._is_over:
            stop_all(self.pid)

    def resume(self) -> None:
        if not self._is_over:
            continue_all(self.pid)

    def standing(self) -> str:
        """Where it stands."""
        return standing(ask(self.pid, self._stacks))

    @property
    def printed(self) -> str:
        """The end of what it has printed."""
        self._tail.read()
        return self._tail.text()

    def end(self) -> None:
        """Kill it and all that it has started, and wait for that."""
        if self._is_over or os.getpid() != self._owner:  # in a copy of this process it is not ours to end
            return
        self._is_over = True
        kill_all(self.pid, END_SECONDS)
        self._process.join(END_SECONDS)
        shutil.rmtree(self.folder, ignore_errors=True)
        self._close()

    def _close(self) -> None:
        for end in (self.messages, self._tail, self._stacks):
            end.close()


def new_folder() -> str:
    """In this process's own, which the next process removes where this one is killed."""
    return tempfile.mkdtemp(prefix="trial-", dir=process_folder())


def _live(assignment: Mapping[str, Any], line: Connection, output: Connection, stacks: Connection) -> None:
    """The life of a trial's process."""
    import torch

    from hasten.tune.trials.trial_requests import serve

    os.setsid()
    die_with(os.getppid())
    with suppress(OSError):  # the system, out of memory, ends trials first: proc_pid_oom_score_adj(5)
        Path("/proc/self/oom_score_adj").write_text("1000")
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # else what it has said is with it when it is stopped or killed
    if (asked_by := signal_to_ask_by()) is not None:
        faulthandler.register(asked_by, file=stacks.fileno(), all_threads=True)
    # They are those of the server, as they were when that one began.
    os.environ.clear()
    os.environ.update(assignment["environment"])
    sys.path[:], sys.argv[:] = assignment["path"], assignment["arguments"]
    sys.dont_write_bytecode = True  # beside the user's files
    if (threads := os.environ.get("OMP_NUM_THREADS", "")).isdecimal():
        torch.set_num_threads(int(threads))  # the server has read its own when it loaded torch
    if assignment["folder"] is not None:
        os.chdir(assignment["folder"])
    serve(Messages(line), assignment["job"], assignment["plan"])
