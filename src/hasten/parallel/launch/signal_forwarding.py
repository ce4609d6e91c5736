"""Signals to this process are sent on to its ranks, and to none of the processes that those have started."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from hasten.stop_signals import end_by, free_signals, listening


@dataclass(slots=True)
class Forwarded:
    """number: of the first signal that was sent on; None where none was."""

    number: int | None = None


@contextmanager
def signals_passed_on() -> Iterator[Forwarded]:
    """Inside, signals that ask to end are sent on to the ranks; while there are none, they end this process. Does
    nothing outside of the main thread, where no handler can be set."""
    forwarded = Forwarded()
    if threading.current_thread() is not threading.main_thread():
        yield forwarded
        return

    def forward(numbers: bytes) -> None:
        for number in numbers:
            forwarded.number = forwarded.number or number
            ranks = [each.pid for each in psutil.Process().children() if _leads_a_session(each.pid)]
            if not ranks:
                end_by(numbers)
            for rank in ranks:
                with suppress(ProcessLookupError):  # it has ended by itself
                    os.kill(rank, number)

    with listening(free_signals(), forward):
        yield forwarded


def _leads_a_session(pid: int) -> bool:
    """True of ranks, and of no other process that this one has started."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
