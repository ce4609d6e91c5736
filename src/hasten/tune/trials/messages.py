"""What a process that was started sends, as JSON messages, and the end of what it prints.

A message is a JSON object, framed by multiprocessing's Connection. No pickle is read: the other end runs the user's
code.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

KEPT_OUTPUT = 1 << 16  # bytes of what a process has printed last
LAST_WORDS = 500  # characters of it in an error
_PART = 1 << 16
_PARTS = 64  # read at once; between them the reader checks the clock


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


class OutputTail:
    """Keeps the end of what comes out of a pipe. It owns the descriptor."""

    def __init__(self, pipe: int) -> None:
        os.set_blocking(pipe, False)
        self._pipe, self._kept, self.ended = pipe, b"", False

    def fileno(self) -> int:
        return self._pipe

    def read(self) -> None:
        """Read what is there, without waiting."""
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
        """Its text can still be read afterwards."""
        if self._pipe >= 0:
            self.read()
            os.close(self._pipe)
        self._pipe, self.ended = -1, True
