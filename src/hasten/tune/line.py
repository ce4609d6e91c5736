"""The ends of what an arm speaks through, held by the process that searches: nothing that comes makes it wait for more.

Requests and answers are JSON on a line of their own. Whoever is at the other end may write anything and as much as it
likes, stop in the middle or say nothing: what is there is read, what is too long is refused, and the rest is a matter
of the time that an answer may take.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterable
from contextlib import suppress
from multiprocessing.connection import wait
from typing import Any

LONGEST_ANSWER = 1 << 26  # bytes
KEPT_OUTPUT = 1 << 16  # bytes of what a process has printed last
_PART = 1 << 16
_PARTS = 64  # read at once: between them somebody has to look at the clock


def wait_for(ends: Iterable[Line | Tail], seconds: float) -> None:
    """Until there is something to read from one that has not ended, or for so many seconds."""
    wait([end.fileno() for end in ends if not end.ended], seconds)


class Garbled(Exception):
    """What came is no answer."""


class Closed(Exception):
    """Nobody takes what is sent."""


class Line:
    """A socket that carries JSON lines. ended: nothing more will come."""

    def __init__(self, end: socket.socket) -> None:
        self._socket, self._come, self.ended = end, bytearray(), False

    def fileno(self) -> int:
        return self._socket.fileno()

    def send(self, message: dict[str, Any], seconds: float) -> None:
        """Raises Closed where the other end is closed, or did not take it within so many seconds."""
        text = json.dumps(message).encode() + b"\n"
        self._socket.settimeout(seconds)
        try:
            self._socket.sendall(text)
        except OSError as error:
            raise Closed(str(error)) from None

    def read(self) -> None:
        """What is there, without waiting."""
        self._socket.setblocking(False)
        while len(self._come) <= LONGEST_ANSWER:
            try:
                part = self._socket.recv(_PART)
            except BlockingIOError:
                return
            except OSError:  # the other end was closed with something unread
                part = b""
            if not part:
                self.ended = True
                return
            self._come += part

    def take(self) -> dict[str, Any] | None:
        """The next line of what has been read; None before it is whole. Raises Garbled for what is no JSON object."""
        end = self._come.find(b"\n")
        if end < 0:
            if len(self._come) > LONGEST_ANSWER:
                raise Garbled(f"more than {LONGEST_ANSWER} bytes without an end")
            return None
        text = bytes(self._come[:end])
        del self._come[: end + 1]
        try:
            found = json.loads(text)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise Garbled(repr(text[:100]))
        return found

    @property
    def is_empty(self) -> bool:
        """Whether nothing has come that was not taken."""
        self.read()
        return not self._come

    def hang_up(self) -> None:
        """Tell the other end that nothing more will come, also where a copy of this process holds this end open."""
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_WR)

    def close(self) -> None:
        self._socket.close()


class Tail:
    """Keeps the end of what comes out of a pipe."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe, self._kept, self.ended = pipe, b"", False

    def fileno(self) -> int:
        return self._pipe

    def read(self) -> None:
        """What is there, without waiting."""
        for _ in range(_PARTS):
            if self.ended:
                return
            try:
                found = os.read(self._pipe, _PART)
            except BlockingIOError:
                return
            self.ended = not found
            self._kept = (self._kept + found)[-KEPT_OUTPUT:]

    def text(self) -> str:
        return self._kept.decode("utf-8", "replace")

    def close(self) -> None:
        """What is kept can still be read afterwards."""
        if not self.ended:
            self.read()
        self.ended = True
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1
