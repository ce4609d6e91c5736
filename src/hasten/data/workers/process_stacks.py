"""Asking a loader worker where it stands.

A signal makes faulthandler write the stacks of all the worker's threads into a pipe, from C and without the
interpreter's help. So a worker answers also in the middle of a library that never comes back. A stopped one cannot.

Source: https://docs.python.org/3/library/faulthandler.html#faulthandler.register
"""

from __future__ import annotations

import faulthandler
import os
import signal
from multiprocessing.connection import Connection

import psutil

from hasten.data.workers.worker_faults import Answer

STACK_SECONDS = 2.0  # a worker has so long to write its stacks
QUIET_SECONDS = 0.2  # stacks are whole when nothing more has come for so long

_CANNOT_ANSWER = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)


def write_stacks_when_asked(report: Connection) -> None:
    """In a worker: from now on the signal makes it write its stacks into this pipe."""
    asked_by = signal_to_ask_by()
    if asked_by is not None:
        faulthandler.register(asked_by, file=report.fileno(), all_threads=True)


def signal_to_ask_by() -> int | None:
    """The signal upon which a worker writes its stacks: a real-time one if there are any, as libraries use the others.
    None where the system has none for it, as Windows."""
    last: int | None = getattr(signal, "SIGRTMAX", None)  # not on macOS
    return getattr(signal, "SIGUSR2", None) if last is None else last - 1


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
