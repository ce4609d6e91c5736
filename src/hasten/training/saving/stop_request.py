"""Signals while a run trains in a folder: noted at once, obeyed at the next optimizer step.

The first signal asks for a checkpoint and the end; a second Ctrl-C ends the process without a checkpoint. After SIGTERM
the process ends just before the grace period does, even in the middle of a step that hangs.
"""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

from hasten.stop_signals import end_process, exit_code, free_signals, is_ours, listening, shown, stop_signals

LEAVING_SECONDS = 1.0  # after the second Ctrl-C, for a program that calls hasten
MARGIN_SECONDS = 1.0  # before the grace period ends
ONE_CTRL_C_SECONDS = 0.2  # a terminal and a launcher may both send one
_ALWAYS_TAKEN = signal.SIGINT, signal.SIGTERM
_ENDS_NEXT = ContextVar("_ENDS_NEXT", default=False)


class StopRequest:
    """number: the signal that asked; None while none did. twice: Ctrl-C was pressed again.

    grace_seconds: from SIGTERM until the process must have ended. say, left: see signals_as_requests.
    """

    def __init__(self, grace_seconds: float, say: Callable[[str], None], left: Callable[[], str]) -> None:
        self.number: int | None = None
        self.twice = False
        self._grace_seconds, self._say, self._left = grace_seconds, say, left
        self._asked_at = 0.0
        self._leaving_at: float | None = None
        self._said = False
        self._first_heard = self._first_noted = 0.0  # the first Ctrl-C, in each of the two threads; 0 before it
        # A command of ours ends by the second Ctrl-C; a program that calls hasten handles it, usually as Python does.
        self._programs = None if is_ours(signal.SIGINT) else signal.getsignal(signal.SIGINT)

    @property
    def seconds_left(self) -> float | None:
        """Until the process must have ended; None where nothing says when. Of all signals, only SIGTERM does."""
        until = [] if self._leaving_at is None else [self._leaving_at]
        if self.number == signal.SIGTERM:
            until.append(self._asked_at + self._grace_seconds - MARGIN_SECONDS)
        return min(until) - time.monotonic() if until else None

    def ask(self, number: int) -> None:
        """Record a signal, which both threads may do. SIGTERM is the most urgent one, and Ctrl-C the least."""
        more_urgent = self.number in (None, signal.SIGINT) or number == signal.SIGTERM
        if more_urgent and number != self.number:
            self._asked_at, self.number = time.monotonic(), number

    def note(self, number: int) -> None:
        """In the main thread, which may be in the middle of anything."""
        self.ask(number)
        if number != signal.SIGINT or self.twice:  # a third one must not interrupt what closes the run
            return
        self._first_noted = self._first_noted or time.monotonic()
        if _is_another(self._first_noted):
            self.twice = True
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
            if number == signal.SIGINT:
                self._first_heard = self._first_heard or time.monotonic()
            if number == signal.SIGINT and self._leaving_at is None and _is_another(self._first_heard):
                self._leaving_at = time.monotonic() + (LEAVING_SECONDS if callable(self._programs) else 0.0)
            elif not self._said:
                again = "; Ctrl-C once more ends without saving" if number == signal.SIGINT else ""
                self._say(f"{signal.Signals(number).name}: saving a checkpoint after this step{again}")
            self._said = True
        if (left := self.seconds_left) is not None and left <= 0:
            end_process(exit_code(self.number or signal.SIGINT), self._last_words)
        return left

    def _last_words(self) -> None:
        if self._leaving_at is None:
            self._say("the step did not end in time: ending without a new checkpoint")
        self._say(f"ended by {shown(self.number or signal.SIGINT)}; {self._left()}")


def _is_another(first: float) -> bool:
    """Whether a Ctrl-C that comes now is not the first one, sent by a second process."""
    return time.monotonic() - first > ONE_CTRL_C_SECONDS


@contextmanager
def signals_as_requests(
    grace_seconds: float, say: Callable[[str], None], left: Callable[[], str]
) -> Iterator[StopRequest | None]:
    """Turn signals into requests inside; None outside the main thread, which alone can handle them.

    say: prints a line. left: the newest checkpoint and how to resume, in words; called in another thread.
    Raises Misconfigured where the environment names signals that cannot be handled.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return

    def said(text: str) -> None:
        with suppress(OSError, ValueError):  # a closed terminal must not keep the process from ending in time
            say(text)

    request = StopRequest(grace_seconds, said, left)
    with listening(_taken(), request.hear, request.note) as before:
        try:
            yield request
        except BaseException:
            if _ENDS_NEXT.get() and signal.SIGTERM in before:
                before[signal.SIGTERM] = signal.SIG_IGN
            raise


def _taken() -> list[int]:
    """The signals to handle. An ignored one stays ignored: a shell lets what it starts in the background ignore Ctrl-C,
    and nohup SIGHUP. A handler of the job's own stays for signals that have other uses too, and so does a handler of a
    program that embeds Python, which Python cannot restore."""
    free, kept = free_signals(), (signal.SIG_IGN, None)
    return [
        number
        for number in stop_signals()
        if number in free or (number in _ALWAYS_TAKEN and signal.getsignal(number) not in kept)
    ]


@contextmanager
def failures_end_the_process() -> Iterator[None]:
    """Inside, a run that fails leaves SIGTERM ignored: a launcher that sees another rank end would end this process
    before it has reported its own error."""
    token = _ENDS_NEXT.set(True)
    try:
        yield
    finally:
        _ENDS_NEXT.reset(token)
