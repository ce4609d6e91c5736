"""A process of multiprocessing's in a session of its own, which sends messages, and whose output is read.

An interrupt from the keyboard reaches only the process that started it. When that one ends, by whatever way, the kernel
kills this one.
"""

from __future__ import annotations

import faulthandler
import io
import multiprocessing
import os
import sys
from collections.abc import Callable
from multiprocessing.connection import Connection, wait
from typing import Any

from hasten.training.probes.stacks import ask, signal_to_ask_by, standing
from hasten.tune.trials.messages import Messages, OutputTail
from hasten.tune.trials.process_tree import die_with, kill_all


class ChildProcess:
    """Starts when made; kill() and close() it whatever happens. context: of multiprocessing; target: is called in the
    process with its end of the messages and the arguments. Raises OSError or EOFError where it cannot be started.

    pid: also the number of its session and of its process group.
    """

    def __init__(self, context: Any, target: Callable[..., None], *arguments: Any) -> None:
        ours, theirs = multiprocessing.Pipe()
        output, their_output = multiprocessing.Pipe(duplex=False)
        self._stacks, their_stacks = multiprocessing.Pipe(duplex=False)
        self.messages, self._output = Messages(ours), OutputTail(os.dup(output.fileno()))
        output.close()
        self._process = context.Process(target=_live, args=(target, arguments, theirs, their_output, their_stacks))
        try:
            self._process.start()
        except BaseException:
            self.close()
            raise
        finally:
            for end in (theirs, their_output, their_stacks):
                end.close()
        self.pid: int = self._process.pid

    def listen(self, seconds: float) -> None:
        """Wait until it sends something or ends, or for so many seconds; read what it printed."""
        ends = [self._process.sentinel, *(end.fileno() for end in (self.messages, self._output) if not end.ended)]
        wait(ends, max(seconds, 0.0))
        self._output.read()

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

    @property
    def printed(self) -> str:
        """The end of what it has printed, also after close()."""
        self._output.read()
        return self._output.text()

    def kill(self, seconds: float) -> bool:
        """It and all that it has started. False where one still lives after so many seconds."""
        is_gone = kill_all(self.pid, seconds)
        self._process.join(seconds)
        return is_gone

    def close(self) -> None:
        for end in (self.messages, self._output, self._stacks):
            end.close()


def _live(
    target: Callable[..., None],
    arguments: tuple[Any, ...],
    messages: Connection,
    output: Connection,
    stacks: Connection,
) -> None:
    """The whole life of the process."""
    os.setsid()
    die_with(os.getppid())
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    output.close()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # otherwise what it has printed is lost when it is killed
    if (signal_number := signal_to_ask_by()) is not None:
        faulthandler.register(signal_number, file=stacks.fileno(), all_threads=True)
    sys.dont_write_bytecode = True  # beside the user's files
    target(Messages(messages), *arguments)
