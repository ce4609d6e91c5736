"""A process of multiprocessing's in a session of its own, and the messages that it sends.

An interrupt from the keyboard reaches only the process that started it. When that one ends, by whatever way, the kernel
kills this one. What it prints is dropped: `hasten train` shows that.

A message is a JSON object, framed by multiprocessing's Connection. No pickle is read: the other end runs the user's
code.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from typing import Any

from hasten.training.probes.stacks import ask, standing, write_stacks_when_asked
from hasten.tuning.trials.process_tree import die_with, kill_all


class Messages:
    """One end of a connection. ended: nothing more will come."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self.ended = connection, False

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises ConnectionError where the other end is closed."""
        self._connection.send_bytes(json.dumps(message).encode())

    def receive(self) -> dict[str, Any] | None:
        """The next message that has come; None where there is none yet. Raises OSError or ValueError for anything that
        is no message."""
        try:
            if self.ended or not self._connection.poll():
                return None
            return json.loads(self._connection.recv_bytes())
        except (EOFError, ConnectionError):
            self.ended = True
            return None

    def wait(self) -> dict[str, Any] | None:
        """The next message, however long it takes; None where none will come."""
        try:
            return json.loads(self._connection.recv_bytes())
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        self._connection.close()


class ChildProcess:
    """Starts when made; kill() and close() it whatever happens. context: of multiprocessing; target: is called in the
    process with its end of the messages and the arguments. Raises OSError or EOFError where it cannot be started.

    pid: also the number of its session and of its process group.
    """

    def __init__(self, context: Any, target: Callable[..., None], *arguments: Any) -> None:
        ours, theirs = multiprocessing.Pipe()
        self._stacks, their_stacks = multiprocessing.Pipe(duplex=False)
        self.messages = Messages(ours)
        self._process = context.Process(target=_live, args=(target, arguments, theirs, their_stacks))
        try:
            self._process.start()
        except BaseException:
            self.close()
            raise
        finally:
            for end in (theirs, their_stacks):
                end.close()
        self.pid: int = self._process.pid

    def listen(self, seconds: float) -> None:
        """Wait until it sends something or ends, or for so many seconds."""
        wait([self._process.sentinel, *([] if self.messages.ended else [self.messages.fileno()])], max(seconds, 0.0))

    @property
    def exit_code(self) -> int | None:
        """Below 0 the number of a signal; None as long as it lives."""
        return self._process.exitcode

    def exit_code_within(self, seconds: float) -> int | None:
        """The exit code of one that is about to end; None where it still lives."""
        wait([self._process.sentinel], seconds)
        return self._process.exitcode

    def standing(self) -> str:
        """A sentence: the line in which it stands."""
        return standing(ask(self.pid, self._stacks))

    def kill(self, seconds: float) -> bool:
        """It and all that it has started. False where one still lives after so many seconds."""
        is_gone = kill_all(self.pid, seconds)
        self._process.join(seconds)
        return is_gone

    def close(self) -> None:
        self.messages.close()
        self._stacks.close()


def _live(target: Callable[..., None], arguments: tuple[Any, ...], messages: Connection, stacks: Connection) -> None:
    """The whole life of the process."""
    os.setsid()
    for number in (signal.SIGHUP, signal.SIGTERM):  # end_with_search.py has set them for the fork server
        signal.signal(number, signal.SIG_DFL)
    die_with(os.getppid())
    nowhere = os.open(os.devnull, os.O_WRONLY)
    for descriptor in (1, 2):
        os.dup2(nowhere, descriptor)
    os.close(nowhere)
    write_stacks_when_asked(stacks)
    sys.dont_write_bytecode = True  # beside the user's files
    target(Messages(messages), *arguments)
