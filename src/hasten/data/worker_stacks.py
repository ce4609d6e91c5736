"""What a loader worker does first, so that it can be asked later where it stands; and the asking.

A signal makes faulthandler write the stacks of all the worker's threads into a pipe, from C and without the
interpreter's help. So a worker answers also in the middle of a library that never comes back. A stopped one cannot.

Source: https://docs.python.org/3/library/faulthandler.html#faulthandler.register
"""

from __future__ import annotations

import faulthandler
import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import psutil

from hasten.checkpoint.segments import note_this_process
from hasten.data.own_positions import take_own_positions
from hasten.data.worker_faults import Answer

STACK_SECONDS = 2.0  # a worker has so long to write its stacks
QUIET_SECONDS = 0.2  # stacks are whole when nothing more has come for so long

_ENDING = signal.SIGINT, signal.SIGTERM
_CANNOT_ANSWER = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)


@dataclass(frozen=True, slots=True)
class Begin:
    """A worker_init_fn. A worker ends when the training process says so, and not by a Ctrl-C or a SIGTERM that both
    receive: what is running may still be finished, and a few steps more where several ranks must agree. Signal handlers
    of the training process are not the worker's, and files that it has open are read by it from positions of its own.

    reports: for each worker the pipe that it writes its stacks into. users: the user's own worker_init_fn.
    noted_in: the training process's folder for what it needs only while it lives; None where no worker is to be noted.
    """

    reports: tuple[Connection, ...]
    users: Callable[[int], None] | None
    noted_in: Path | None

    def __call__(self, worker: int) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, _go_on)  # and not SIG_IGN, which what a worker starts would have too
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _ENDING)
        if self.noted_in is not None:
            note_this_process(self.noted_in)
        asked_by = signal_to_ask_by()
        if asked_by is not None:
            faulthandler.register(asked_by, file=self.reports[worker].fileno(), all_threads=True)
        take_own_positions()
        if self.users is not None:
            self.users(worker)


def _go_on(number: int, frame: object) -> None:
    pass


def signal_to_ask_by() -> int | None:
    """The signal upon which a worker writes its stacks: a real-time one if there are any, as libraries use the others.
    None where the system has none for it, as Windows."""
    last: int | None = getattr(signal, "SIGRTMAX", None)  # not on macOS
    return getattr(signal, "SIGUSR2", None) if last is None else last - 1


@contextmanager
def interrupts_held() -> Iterator[None]:
    """Around the start of workers: they begin with these signals blocked, and none ends before it can pass them by."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, _ENDING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ask(pid: int, report: Connection) -> Answer:
    """The worker's own account of where it stands, read from its pipe, and the kernel's."""
    asked_by = signal_to_ask_by()
    try:
        state = psutil.Process(pid).status()
        if asked_by is None:
            return Answer(state=state, stacks="")
        if state not in _CANNOT_ANSWER:
            os.kill(pid, asked_by)
    except (psutil.Error, ProcessLookupError):
        return Answer(state="gone", stacks="")
    said, patience = b"", STACK_SECONDS
    while state not in _CANNOT_ANSWER and report.poll(patience):
        part = os.read(report.fileno(), 1 << 16)
        if not part:
            break
        said, patience = said + part, QUIET_SECONDS
    return Answer(state=state, stacks=said.decode(errors="replace"))
