"""What this process is asked by a signal, its ranks are asked, and none of what they have started."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

import psutil

from hasten.errors import Terminated

_PASSED_ON = signal.SIGINT, signal.SIGTERM


@dataclass(slots=True)
class Asked:
    """number: of the first signal that was passed on; None where none was."""

    number: int | None = None


@contextmanager
def signals_passed_on() -> Iterator[Asked]:
    """Inside, Ctrl-C and SIGTERM are the ranks' business. Raises KeyboardInterrupt and Terminated while there are none.
    Nothing happens outside of the main thread, where no handler can be set."""
    asked = Asked()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return

    def handle(number: int, frame: object) -> None:
        asked.number = asked.number or number
        ranks = [each.pid for each in psutil.Process().children() if _leads_a_session(each.pid)]
        if not ranks:
            raise Terminated if number == signal.SIGTERM else KeyboardInterrupt
        for rank in ranks:
            with suppress(ProcessLookupError):  # it has ended by itself
                os.kill(rank, number)

    # What is ignored stays so: a shell lets what it starts in the background ignore Ctrl-C.
    heeded = [number for number in _PASSED_ON if signal.getsignal(number) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in heeded}
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _leads_a_session(pid: int) -> bool:
    """As each rank does, and nothing else that this process may have started."""
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
