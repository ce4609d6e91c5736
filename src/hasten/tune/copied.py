"""A process that was copied for an arm, with its keeper: what is heard of both, and their end.

keeper.py is the other side of it.
"""

from __future__ import annotations

import os
import signal
import socket
import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from multiprocessing.connection import Pipe

from hasten.training.stacks import ask, standing
from hasten.tune.line import Line, Tail, wait_for
from hasten.tune.nursery import END_SECONDS, Nursery
from hasten.tune.processes import continue_below, resident_bytes, stop_below


class NotBegun(Exception):
    """There is no copy; the words say why."""


class Copied:
    """Raises NotBegun where there is none after so many seconds.

    keeper, leader: numbers of processes; folder: of its own; exit_code: the leader's, once it
    has ended, below 0 the number of a signal; line: for requests and answers."""

    def __init__(self, nursery: Nursery, libraries: Sequence[str], seconds: float) -> None:
        self._nursery, self._owner, self._ended = nursery, os.getpid(), False
        self.exit_code: int | None = None
        self._all_ended = False
        with ExitStack() as theirs:
            life, their_life = socket.socketpair()
            line, their_line = socket.socketpair()
            self._report, their_report = Pipe(duplex=False)
            reading, writing = os.pipe()
            for end in (their_life, their_line, their_report):
                theirs.callback(end.close)
            theirs.callback(os.close, writing)
            self._life, self.line, self._tail = Line(life), Line(line), Tail(reading)
            given = [their_life.fileno(), their_line.fileno(), writing, their_report.fileno()]
            with suppress(OSError):  # the nursery has ended: nothing will be heard
                nursery.copy(libraries, given)
        try:
            self._wait_to_be_born(time.monotonic() + seconds)
        except BaseException:
            self._close()
            raise

    def _wait_to_be_born(self, until: float) -> None:
        while (born := self._life.take()) is None:
            if self._life.ended:
                raise NotBegun(f"the process that arms are copied from {self._nursery.end()}")
            if time.monotonic() > until:
                self._nursery.close()
                raise NotBegun("the process that arms are copied from did not answer")
            wait_for([self._life, *self._nursery.tails], max(0.0, until - time.monotonic()))
            self._life.read()
            for tail in self._nursery.tails:
                tail.read()
        self.leader, self.folder, self.keeper = int(born["leader"]), str(born["folder"]), int(born["keeper"])

    def listen(self, seconds: float) -> None:
        """Until something is heard, or for so many seconds; then all that is there is read."""
        wait_for([self._life, self.line, self._tail], seconds)
        self._hear_keeper()
        self.line.read()  # after the keeper: what the leader said before its end is there now
        self._tail.read()

    def _hear_keeper(self) -> None:
        self._life.read()
        while told := self._life.take():
            self.exit_code = told.get("exit_code", self.exit_code)
            self._all_ended = self._all_ended or "all_ended" in told

    @property
    def is_lost(self) -> bool:
        """Whether no answer can come any more, unless it has come already."""
        return self.line.ended or self._life.ended or self.exit_code is not None

    @property
    def keeper_was_killed(self) -> bool:
        return self._life.ended and not self._all_ended

    def exit_code_of_lost(self) -> int | None:
        """None where the leader lives, though it has closed its line, or nobody is left to tell."""
        until = time.monotonic() + END_SECONDS
        while self.exit_code is None and not self._life.ended and (left := until - time.monotonic()) > 0:
            if resident_bytes(self.leader):  # whoever ends gives back memory first, and files afterwards
                break
            wait_for([self._life], left)
            self._hear_keeper()
        return self.exit_code

    def stop(self) -> None:
        """The leader and all that it has started."""
        if not self._ended:
            stop_below(self.keeper)

    def go_on(self) -> None:
        if not self._ended:
            continue_below(self.keeper)

    def standing(self) -> str:
        """Where the leader stands."""
        return standing(ask(self.leader, self._report))

    @property
    def printed(self) -> str:
        self._tail.read()
        return self._tail.text()

    def end(self) -> None:
        """Kill all that is left of it, and wait for that."""
        if self._ended or os.getpid() != self._owner:  # in a copy of this process it is not ours to end
            return
        self._ended = True
        self._life.hang_up()
        until = time.monotonic() + END_SECONDS
        with suppress(ProcessLookupError):
            if not self._life.ended:
                os.kill(self.keeper, signal.SIGCONT)  # the arm may have stopped it
        while not self._life.ended and (left := until - time.monotonic()) > 0:
            wait_for([self._life], left)
            self._hear_keeper()
        if not self._all_ended:
            self._end_without_keeper()
        self._close()

    def _end_without_keeper(self) -> None:
        if not self._life.ended:
            with suppress(ProcessLookupError):
                os.kill(self.keeper, signal.SIGKILL)
        if not self._nursery.wait_for_killed(self.keeper):
            with suppress(ProcessLookupError, PermissionError):  # PermissionError: macOS, for an ended leader
                os.killpg(self.leader, signal.SIGKILL)

    def _close(self) -> None:
        for one in (self._life, self.line, self._tail, self._report):
            one.close()
