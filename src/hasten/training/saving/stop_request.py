"""Signals while a run trains in a folder: noted at once, obeyed at the next optimizer step.

A signal that came once is a request: the run saves a checkpoint where it stands, between two steps, and ends. Ctrl-C
that is pressed again ends the process without a checkpoint. And a process that is asked to go by SIGTERM is killed when
its time of grace is over, so it goes just before that by itself, even from the middle of an operation that lasts.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from hasten.stop_signals import end_process, exit_code, free_signals, is_ours, listening, shown, stop_signals

LEAVING_SECONDS = 1.0  # after the second Ctrl-C, for a program that hasten is called from
MARGIN_SECONDS = 1.0  # before the time of grace ends
ONE_CTRL_C_SECONDS = 0.2  # a terminal and a program in between may both send it
_ALWAYS_TAKEN = signal.SIGINT, signal.SIGTERM
_ENDS_NEXT = ContextVar("_ENDS_NEXT", default=False)


class StopRequest:
    """number: the signal that asked; None while none did. twice: Ctrl-C was pressed again.

    grace_seconds: from SIGTERM until the process must be gone. say, left: see signals_as_requests.
    """

    def __init__(self, grace_seconds: float, say: Callable[[str], None], left: Callable[[], str]) -> None:
        self.number: int | None = None
        self.twice = False
        self._grace_seconds, self._say, self._left = grace_seconds, say, left
        self._asked_at = 0.0
        self._leaving_at: float | None = None
        self._told = False
        self._heard, self._noted = _Presses(), _Presses()
        # A command of ours ends by the second Ctrl-C; a program that calls hasten handles it, usually as Python does.
        self._programs = None if is_ours(signal.SIGINT) else signal.getsignal(signal.SIGINT)

    @property
    def seconds_left(self) -> float | None:
        """Until the process must be gone; None where nobody is in a hurry. Of all signals, only SIGTERM says when."""
        until = [] if self._leaving_at is None else [self._leaving_at]
        if self.number == signal.SIGTERM:
            until.append(self._asked_at + self._grace_seconds - MARGIN_SECONDS)
        return min(until) - time.monotonic() if until else None

    def ask(self, number: int) -> None:
        """Take in a signal, which may come here twice: in the main thread, and in the one that listens. SIGTERM is the
        most urgent one, and Ctrl-C the least."""
        more_urgent = self.number in (None, signal.SIGINT) or number == signal.SIGTERM
        if more_urgent and number != self.number:
            self._asked_at, self.number = time.monotonic(), number

    def note(self, number: int) -> None:
        """In the main thread, which may be in the middle of anything."""
        self.ask(number)
        if number == signal.SIGINT and self._noted.again() and not self.twice:
            self.twice = True  # once: the next would break into the closing, which is given its time
            if callable(self._programs):
                ours = signal.signal(signal.SIGINT, self._programs)
                try:
                    signal.raise_signal(signal.SIGINT)
                finally:
                    signal.signal(signal.SIGINT, ours)

    def hear(self, numbers: bytes) -> float | None:
        """In the thread that listens. Ends the process when its time is over."""
        for number in numbers:
            self.ask(number)
            if number == signal.SIGINT and self._heard.again() and self._leaving_at is None:
                self._leaving_at = time.monotonic() + (LEAVING_SECONDS if callable(self._programs) else 0.0)
            elif not self._told:
                once_more = "; Ctrl-C once more ends without saving" if number == signal.SIGINT else ""
                self._say(f"{signal.Signals(number).name}: saving a checkpoint after this step{once_more}")
            self._told = True
        if (left := self.seconds_left) is not None and left <= 0:
            end_process(exit_code(self.number or signal.SIGINT), self._last_words)
        return left

    def _last_words(self) -> None:
        if self._leaving_at is None:
            self._say("the step did not end in time: ending without a new checkpoint")
        self._say(f"ended by {shown(self.number or signal.SIGINT)}; {self._left()}")


class _Presses:
    """Of Ctrl-C, as one of the two threads gets to know of them."""

    def __init__(self) -> None:
        self._first: float | None = None

    def again(self) -> bool:
        """Called at each: whether one was pressed before."""
        now = time.monotonic()
        self._first = now if self._first is None else self._first
        return now - self._first > ONE_CTRL_C_SECONDS


@contextmanager
def signals_as_requests(
    grace_seconds: float, say: Callable[[str], None], left: Callable[[], str]
) -> Iterator[StopRequest | None]:
    """Turn signals into requests inside. None where they are not this process's to take: in a thread beside the main
    one.

    say: tells a person. left: what a run that is ended here leaves, and how to go on with it, in words; asked for from
    another thread. Raises Misconfigured where the environment names signals that cannot be taken.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    request = StopRequest(grace_seconds, _to_whoever_listens(say), left)
    with listening(_heeded(say), request.hear, request.note) as before:
        try:
            yield request
        except BaseException:
            if _ENDS_NEXT.get() and signal.SIGTERM in before:
                before[signal.SIGTERM] = signal.SIG_IGN
            raise


def _heeded(say: Callable[[str], None]) -> list[int]:
    """What is ignored stays so: a shell lets what it starts in the background ignore Ctrl-C, and nohup SIGHUP.

    And so does a handler that was there before Python, of a program that Python is embedded in. Python cannot put it
    back: that program would be without it for the rest of its life. A run that ends by it has its planned checkpoints.
    Of the signals that have other uses as well, a handler of the job's own stays.
    """
    free, found = free_signals(), list[int]()
    for number in stop_signals():
        handler = signal.getsignal(number)
        if handler is None:
            name = signal.Signals(number).name
            say(f"{name} is handled outside of Python, and stays so: no checkpoint is saved when it comes")
        elif number in free or (number in _ALWAYS_TAKEN and handler != signal.SIG_IGN):
            found.append(number)
    return found


@contextmanager
def failures_end_the_process() -> Iterator[None]:
    """Inside, a run that fails leaves SIGTERM ignored: this process is about to say why and to end, and a launcher that
    has seen another rank go would end it before it has."""
    token = _ENDS_NEXT.set(True)
    try:
        yield
    finally:
        _ENDS_NEXT.reset(token)


def _to_whoever_listens(say: Callable[[str], None]) -> Callable[[str], None]:
    """A terminal that is closed must not keep the process from ending in time."""

    def said(text: str) -> None:
        with suppress(OSError, ValueError):
            say(text)

    return said
