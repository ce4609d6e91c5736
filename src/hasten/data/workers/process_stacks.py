"""Asking another process where it stands, and reading its answer.

A signal makes faulthandler write the stacks of all threads of that process into a pipe, from C. So a process answers
also in the middle of a library that never returns. A stopped one cannot.

Source: https://docs.python.org/3/library/faulthandler.html#faulthandler.register
"""

from __future__ import annotations

import faulthandler
import os
import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection

import psutil

STACK_SECONDS = 2.0  # a process has so long to write its stacks
QUIET_SECONDS = 0.2  # stacks are whole when nothing more has come for so long

# A real-time one, as libraries use the others. macOS has none.
_SIGNAL: int = signal.SIGRTMAX - 1 if hasattr(signal, "SIGRTMAX") else signal.SIGUSR2
_CANNOT_ANSWER = (psutil.STATUS_STOPPED, psutil.STATUS_TRACING_STOP, psutil.STATUS_ZOMBIE)
_THREAD = re.compile(r"^(?:Current thread|Thread) .*\n((?:  .*\n?)*)", re.MULTILINE)
_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')
_READING = ("batch_readers.py", "__getitems__")  # the frames inside this one belong to the reading of a sample


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """Where a process stands: its state by the kernel, in psutil's words, and its own stacks by faulthandler."""

    state: str
    stacks: str


@dataclass(frozen=True, slots=True)
class Frame:
    file: str
    line: int
    function: str

    def __str__(self) -> str:
        return f"{self.file}:{self.line} in {self.function}"


def write_stacks_when_asked(report: Connection) -> None:
    """In the process that is asked: from now on the signal makes it write its stacks into this pipe."""
    faulthandler.register(_SIGNAL, file=report.fileno(), all_threads=True)


def ask(pid: int, report: Connection) -> Answer:
    """The process's own account of where it stands, read from its pipe, and the kernel's."""
    try:
        state = psutil.Process(pid).status()
        if state not in _CANNOT_ANSWER:
            os.kill(pid, _SIGNAL)
    except (psutil.Error, ProcessLookupError):
        return Answer(state="gone", stacks="")
    stacks, seconds = b"", STACK_SECONDS
    while state not in _CANNOT_ANSWER and report.poll(seconds):
        part = os.read(report.fileno(), 1 << 16)
        if not part:
            break
        stacks, seconds = stacks + part, QUIET_SECONDS
    return Answer(state=state, stacks=stacks.decode(errors="replace"))


def reading_frames(stacks: str) -> list[Frame] | None:
    """From faulthandler's text, the frames of the thread that reads a batch, innermost first, without those around the
    reading; None when no thread reads."""
    for frames in threads_of(stacks):
        for depth, frame in enumerate(frames):
            if (os.path.basename(frame.file), frame.function) == _READING:
                return frames[:depth] or [frame]
    return None


def threads_of(stacks: str) -> Iterator[list[Frame]]:
    """From faulthandler's text, the frames of each thread that has any, innermost first; the main thread comes last."""
    for thread in _THREAD.finditer(stacks):
        if frames := [Frame(file, int(line), function) for file, line, function in _FRAME.findall(thread[1])]:
            yield frames
