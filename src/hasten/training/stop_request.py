"""SIGINT and SIGTERM while a run trains: noted at once, obeyed at the next optimizer step.

A signal that came once is a request: the run saves a checkpoint where it stands, between two steps, and ends. SIGINT
that comes twice ends the process without a checkpoint. And a process that is asked to go by SIGTERM is killed when its
time of grace is over, so it goes just before that by itself, even from the middle of an operation that no exception
reaches. For both, a thread listens: Python runs its own handlers only between two of its instructions, and one backward
pass can take seconds.

Processes that are forked meanwhile, such as loader workers, take no notice of Ctrl-C, which a terminal sends to them
as well: they serve the run until it has saved.
"""

from __future__ import annotations

import os
import select
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar

import psutil

from hasten.errors import INTERRUPTED, TERMINATED, Terminated

LEAVING_SECONDS = 1.0  # after the second Ctrl-C, for everything to be closed in good order
MARGIN_SECONDS = 1.0  # before the time of grace ends
LAST_WORDS_SECONDS = 0.5  # of these: a terminal or a disk that hangs must not keep the process
ONE_CTRL_C_SECONDS = 0.2  # a terminal and a program in between may both send it
_SIGNALS = (signal.SIGINT, signal.SIGTERM)
_ENDS_NEXT = ContextVar("_ENDS_NEXT", default=False)


class StopRequest:
    """number: the signal that asked; None while none did. raised: whether an exception has gone out for it."""

    def __init__(self, grace_seconds: float) -> None:
        self.number: int | None = None
        self.twice = self.raised = False
        self._grace_seconds = grace_seconds
        self._asked_at = self._interrupted_at = 0.0

    @property
    def seconds_left(self) -> float | None:
        """Until the process must be gone; None where nobody is in a hurry."""
        if self.number != signal.SIGTERM:
            return None
        return self._grace_seconds - MARGIN_SECONDS - (time.monotonic() - self._asked_at)

    @property
    def exit_code(self) -> int:
        return TERMINATED if self.number == signal.SIGTERM else INTERRUPTED

    def interrupt(self) -> KeyboardInterrupt:
        return Terminated() if self.number == signal.SIGTERM else KeyboardInterrupt()

    def ask(self, number: int) -> None:
        """Take in a signal, which may be asked for twice: by its handler, and by the thread that listens. SIGTERM is
        the more urgent one."""
        if self.number is None or (self.number == signal.SIGINT and number == signal.SIGTERM):
            self.number, self._asked_at = number, time.monotonic()

    def count(self, number: int) -> None:
        """Take in how often Ctrl-C was pressed; SIGTERM that comes again says no more than before."""
        if number == signal.SIGINT:
            now = time.monotonic()
            self.twice |= self._interrupted_at > 0 and now - self._interrupted_at > ONE_CTRL_C_SECONDS
            self._interrupted_at = self._interrupted_at or now


@contextmanager
def signals_as_requests(
    grace_seconds: float, say: Callable[[str], None], left: Callable[[], str]
) -> Iterator[StopRequest | None]:
    """Turn both signals into requests inside. None where they are not this process's to take: in a thread beside the
    main one.

    left: what a run that is ended here leaves, and how to go on with it, in words; asked for from another thread.
    """
    if threading.current_thread() is not threading.main_thread():
        yield None
        return
    request, say = StopRequest(grace_seconds), _to_whoever_listens(say)
    listening, ours = os.pipe()
    os.set_blocking(ours, False)

    def handle(number: int, frame: object) -> None:
        request.ask(number)
        if request.twice and not request.raised:  # else the thread that listens has told it, or will
            # Once: the next would break into the closing, which the thread that listens gives its time and ends.
            request.raised = True
            raise request.interrupt()

    before = {number: signal.signal(number, handle) for number in _heeded(say)}
    woken_before = signal.set_wakeup_fd(ours, warn_on_full_buffer=False)
    thread = threading.Thread(target=_listen, args=(listening, request, say, left), daemon=True)
    _HANDLERS.add(handle)
    thread.start()
    try:
        yield request
    except BaseException:
        if _ENDS_NEXT.get() and signal.SIGTERM in before:
            before[signal.SIGTERM] = signal.SIG_IGN
        raise
    finally:
        signal.set_wakeup_fd(woken_before)
        for number, handler in before.items():
            signal.signal(number, handler)
        _HANDLERS.discard(handle)
        os.close(ours)  # which ends the thread
        thread.join()
        os.close(listening)


def _heeded(say: Callable[[str], None]) -> list[signal.Signals]:
    """What is ignored stays so: a shell lets what it starts in the background ignore Ctrl-C.

    And so does a handler that was there before Python, of a program that Python is embedded in. Python cannot put it
    back: that program would be without it for the rest of its life. A run that ends by it has its planned checkpoints.
    """
    before = {number: signal.getsignal(number) for number in _SIGNALS}
    for number in (number for number, handler in before.items() if handler is None):
        say(f"{number.name} is handled outside of Python, and stays so: no checkpoint is saved when it comes")
    return [number for number, handler in before.items() if handler not in (signal.SIG_IGN, None)]


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


def _listen(listening: int, request: StopRequest, say: Callable[[str], None], left: Callable[[], str]) -> None:
    """Until the pipe is closed: take in signals, and end the process when its time is over."""
    leaving_at, told = None, False
    while True:
        until = [leaving_at - time.monotonic()] if leaving_at is not None else []
        seconds_left = request.seconds_left
        until += [seconds_left] if seconds_left is not None else []
        if until and min(until) <= 0:
            _leave(request, say, left)
        if not select.select([listening], [], [], min(until) if until else None)[0]:
            continue
        numbers = os.read(listening, 64)
        if not numbers:
            return
        for number in filter(_SIGNALS.__contains__, numbers):
            before = request.twice
            request.ask(number)
            request.count(number)
            if not told:
                told = True
                once_more = "; Ctrl-C once more ends without saving" if number == signal.SIGINT else ""
                say(f"{signal.Signals(number).name}: saving a checkpoint after this step{once_more}")
            if request.twice and not before:
                leaving_at = time.monotonic() + LEAVING_SECONDS
                signal.pthread_kill(
                    threading.main_thread().ident or 0, signal.SIGINT
                )  # its handler may have run by now


def _leave(request: StopRequest, say: Callable[[str], None], left: Callable[[], str]) -> None:
    """Without a word to the main thread, which does not answer. Nothing on the disk is harmed by that."""

    def last_words() -> None:
        say("the step did not end in time: ending without a new checkpoint")
        say(f"ended by {'SIGTERM' if request.number == signal.SIGTERM else 'Ctrl-C'}; {left()}")

    speaking = threading.Thread(target=last_words, daemon=True)
    speaking.start()
    speaking.join(LAST_WORDS_SECONDS)
    for child in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):  # it has ended by itself
            child.kill()
    os._exit(request.exit_code)


_HANDLERS: set[object] = set()  # that are in force, one for each run that trains


def _in_a_fork() -> None:
    """A forked process has these handlers too, and the pipe that its parent listens to."""
    if not _HANDLERS:
        return
    signal.set_wakeup_fd(-1)
    if signal.getsignal(signal.SIGINT) in _HANDLERS:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
    if signal.getsignal(signal.SIGTERM) in _HANDLERS:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _HANDLERS.clear()


os.register_at_fork(after_in_child=_in_a_fork)
