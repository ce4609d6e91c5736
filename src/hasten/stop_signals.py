"""The signals that ask a process to end, and what each command does on them.

No handler of hasten raises. C writes a signal's number into a pipe, and a thread reads it at once, also while the main
thread is inside a long C function.

Any of these signals ends a command at once (`end_at_once`). A run that trains in a folder saves a checkpoint first
(training/saving/stop_request.py). Ctrl-C raises KeyboardInterrupt in commands that return what they have found so far
(`ctrl_c_interrupts`).

This module loads before everything else, so it imports nothing but the standard library and the errors.
"""

from __future__ import annotations

import atexit
import os
import select
import signal
import stat
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from types import FrameType
from typing import Any, NamedTuple, NoReturn

from hasten.errors import INTERRUPTED, TERMINATED, Misconfigured, Terminated

Hear = Callable[[bytes], float | None]
"""Called in its own thread with the numbers of the signals that came. It returns the seconds after which it is called
again, without a number, if no signal comes; None: never."""

MORE = "HASTEN_STOP_SIGNALS"  # environment variable: further signals by which a cluster announces the end
_OF_A_CLUSTER = "USR1", "USR2"
_TO_A_GROUP = [getattr(signal, name) for name in ("SIGINT", "SIGHUP", "SIGUSR1", "SIGUSR2") if hasattr(signal, name)]

_LAST_WORDS_SECONDS = _CLEANING_SECONDS = 0.5  # at most: usually a few milliseconds
_CHILDREN_SECONDS = 1.0  # with the import of psutil
_OVER = 0  # no signal has this number


def stop_signals() -> list[int]:
    """SIGINT, SIGTERM, SIGHUP, SIGXCPU and what the environment adds, SIGUSR1 by default: as far as this system
    has them. Raises Misconfigured."""
    value = os.environ.get(MORE, "USR1")
    more = [each.strip().upper().removeprefix("SIG") for each in value.split(",") if each.strip()]
    if any(each not in _OF_A_CLUSTER for each in more):
        raise Misconfigured(f"is {value!r}", where=MORE, fix='write USR1, USR2, "USR1,USR2", or nothing for neither')
    names = [f"SIG{name}" for name in ("INT", "TERM", "HUP", "XCPU", *more)]
    return [int(getattr(signal, name)) for name in names if hasattr(signal, name)]


def free_signals() -> list[int]:
    """Those without another handler: neither of the user's job, nor of a program that embeds Python, nor ignored by a
    shell that runs the command in the background."""
    unused = signal.SIG_DFL, signal.default_int_handler
    return [number for number in stop_signals() if signal.getsignal(number) in unused or is_ours(number)]


def is_ours(number: int) -> bool:
    """Whether a handler of this module is in force for the signal."""
    handler = signal.getsignal(number)
    return any(handler is each.handler for each in _IN_FORCE)


def shown(number: int) -> str:
    return "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name


def exit_code(number: int) -> int:
    """The exit code of what a signal ended: one for Ctrl-C, and one for all others."""
    return INTERRUPTED if number == signal.SIGINT else TERMINATED


def interrupt(number: int) -> KeyboardInterrupt:
    """What a run that a signal ended raises. number: 0 for a KeyboardInterrupt that other code raised."""
    return KeyboardInterrupt() if number in (0, signal.SIGINT) else Terminated(shown(number))


# ── listening ───────────────────────────────────────────────────────────────────────────────────────────────────────


class _Scope(NamedTuple):
    """Signals with a handler of hasten, and both ends of the pipe that C writes their numbers into. before: handlers
    to restore."""

    handler: Any
    reading: int
    writing: int
    before: dict[int, Any]


_IN_FORCE: list[_Scope] = []


@contextmanager
def listening(
    numbers: Iterable[int], hear: Hear, note: Callable[[int], None] = lambda number: None
) -> Iterator[dict[int, Any]]:
    """Inside, these signals only call `hear`, in a thread, and `note`, in the main thread between two instructions of
    Python. Yields the handlers that are restored afterwards. Only for the main thread."""

    def handle(number: int, frame: FrameType | None) -> None:
        note(number)

    here = os.getpid()
    reading, writing = os.pipe()
    for end in (reading, writing):
        os.set_blocking(end, False)
    scope = _Scope(handle, reading, writing, {number: signal.getsignal(number) for number in numbers})
    woken_before = signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    _IN_FORCE.append(scope)
    for number in scope.before:
        signal.signal(number, handle)
    threading.Thread(target=_listen, args=(scope, hear), name="hasten-signals", daemon=True).start()
    try:
        yield scope.before
    finally:
        if os.getpid() == here:  # a forked process has closed it all
            signal.set_wakeup_fd(woken_before)
            for number, handler_before in scope.before.items():
                signal.signal(number, handler_before)
            _IN_FORCE.remove(scope)
            # The thread ends by this number: an end of file may never come, as forked processes can hold the pipe open.
            os.write(writing, bytes([_OVER]))
            os.close(writing)


def _listen(scope: _Scope, hear: Hear) -> None:
    waiting = select.poll()  # select() refuses descriptors above 1023
    waiting.register(scope.reading, select.POLLIN)
    until: float | None = None  # signals of others, such as a profiler's, must not postpone it
    while True:
        left = None if until is None else max(0, int(1000 * (until - time.monotonic())) + 1)
        came = os.read(scope.reading, 64) if waiting.poll(left) else b""
        # Where Ctrl-C interrupts a command, Python's own handler has it.
        heard = bytes(each for each in came if each in scope.before and signal.getsignal(each) is scope.handler)
        if signal.SIGHUP in heard:
            _leave_a_dead_terminal()
        if heard or not came or (until is not None and time.monotonic() >= until):
            seconds = hear(heard)
            until = None if seconds is None else time.monotonic() + seconds
        if _OVER in came:
            os.close(scope.reading)
            return


def _leave_a_dead_terminal() -> None:
    """Writes to a terminal that has hung up fail, which would end the run before the signal does."""
    for stream in (1, 2):
        with suppress(OSError):  # it is closed
            if stat.S_ISCHR(os.fstat(stream).st_mode) and not os.isatty(stream):
                nothing = os.open(os.devnull, os.O_WRONLY)
                os.dup2(nothing, stream)
                os.close(nothing)


def _in_a_fork() -> None:
    """A forked process drops its parent's handlers and pipes. It ignores signals to the whole process group, as its
    parent needs it until a checkpoint is saved. Any other signal ends it."""
    if not _IN_FORCE:
        return
    signal.set_wakeup_fd(-1)
    for scope in _IN_FORCE:
        for number in scope.before:
            if signal.getsignal(number) is not scope.handler:
                continue
            signal.signal(number, signal.SIG_IGN if number in _TO_A_GROUP else signal.SIG_DFL)
        os.close(scope.reading)
        os.close(scope.writing)
    _IN_FORCE.clear()


os.register_at_fork(after_in_child=_in_a_fork)


# ── ending ──────────────────────────────────────────────────────────────────────────────────────────────────────────


_CLEANING: list[Callable[[], object]] = []


def clean_before_end(clean: Callable[[], object]) -> None:
    """Let `end_process` do this as well. It may run in another thread, and twice."""
    _CLEANING.append(clean)


@contextmanager
def cleaned_up(clean: Callable[[], object]) -> Iterator[None]:
    """Clean up after the block, also when a signal ends the process."""
    _CLEANING.append(clean)
    try:
        yield
    finally:
        _CLEANING.remove(clean)
        clean()


def end_process(code: int, last_words: Callable[[], object]) -> NoReturn:
    """End this process and all its children, from another thread than the main one, which may hang. Files survive a
    kill at any instant, so this harms none."""
    _within(_LAST_WORDS_SECONDS, lambda: _say(last_words))  # a terminal that hangs must not keep the process
    with suppress(OSError):
        closed = os.open(os.devnull, os.O_RDONLY)
        for stream in (1, 2):  # the main thread may still fail on what ends here
            os.dup2(closed, stream)
    _within(_CHILDREN_SECONDS, _end_children)
    _within(_CLEANING_SECONDS, lambda: [clean() for clean in reversed(_CLEANING)])
    os._exit(code)


def _say(last_words: Callable[[], object]) -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):  # None, closed, or nobody reads it
            stream.flush()
    last_words()


def _end_children() -> None:
    import psutil

    children = psutil.Process().children(recursive=True)
    for child in children:
        with suppress(psutil.Error):  # it has ended by itself
            if not any("resource_tracker" in word for word in child.cmdline()):  # frees what the others have left
                child.kill()
    psutil.wait_procs(children, timeout=_CHILDREN_SECONDS / 2)  # until then they may write


def _within(seconds: float, act: Callable[[], object]) -> None:
    def done() -> None:
        with suppress(OSError, ValueError):
            act()

    with suppress(RuntimeError):  # there is no room for another thread
        thread = threading.Thread(target=done, daemon=True)
        thread.start()
        thread.join(seconds)


# ── commands ────────────────────────────────────────────────────────────────────────────────────────────────────────


_COMMAND = ExitStack()


def end_at_once() -> None:
    """From now on each of these signals ends this process at once, unless something else listens to it. For a process
    of a command's own. A second call does nothing."""
    if _IN_FORCE:
        return
    with suppress(Misconfigured):  # the next call raises it, where it is reported
        _COMMAND.enter_context(listening(free_signals(), end_by))
        atexit.register(_restore)  # which is done last, as it is the first


def end_by(numbers: bytes) -> NoReturn:
    """End this process by a signal, while there is nothing to be saved; a Hear."""
    number = numbers[-1]

    def last_words() -> None:
        if os.environ.get("WORLD_SIZE", "1") == "1":  # whoever has launched several says why they ended
            os.write(2, f"ended by {shown(number)}\n".encode())

    end_process(exit_code(number), last_words)


def _restore() -> None:
    """The thread ends with the interpreter, after which nothing would read a signal."""
    _COMMAND.close()
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)  # while Python goes down, its own would show a traceback


@contextmanager
def ctrl_c_interrupts() -> Iterator[None]:
    """Inside, Ctrl-C raises KeyboardInterrupt as in any Python program, for commands that return what they have found.
    It does nothing outside the main thread, or where Ctrl-C has a handler of another program."""
    if threading.current_thread() is not threading.main_thread() or not is_ours(signal.SIGINT):
        yield
        return
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
