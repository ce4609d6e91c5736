"""JSON messages between the process that searches and one that it has started.

A message is a JSON object, framed by multiprocessing's Connection. No pickle is read: the other end runs code of the
user's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

LONGEST = 1 << 26  # bytes of a message


class Garbled(Exception):
    """What came is no message, or lacks what it should say."""


class Closed(Exception):
    """Nobody takes what is sent."""


class Messages:
    """One end. ended: nothing more will come."""

    def __init__(self, connection: Connection) -> None:
        self._connection, self.ended = connection, False

    def fileno(self) -> int:
        return self._connection.fileno()

    def send(self, message: Mapping[str, Any]) -> None:
        """Raises Closed where the other end is closed."""
        try:
            self._connection.send_bytes(json.dumps(message).encode())
        except OSError as error:
            raise Closed(str(error)) from None

    def receive(self) -> dict[str, Any] | None:
        """The next message that has come; None where there is none yet. Raises Garbled."""
        try:
            if self.ended or not self._connection.poll():
                return None
            text = self._connection.recv_bytes(LONGEST)
        except (EOFError, ConnectionError):
            self.ended = True
            return None
        except OSError as error:
            raise Garbled(str(error)) from None
        return _read(text)

    def wait(self) -> dict[str, Any] | None:
        """The next message, however long it takes; None where none will come."""
        try:
            return _read(self._connection.recv_bytes(LONGEST))
        except (EOFError, OSError):
            return None

    def close(self) -> None:
        self._connection.close()


def _read(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise Garbled(repr(text[:100]))
    return found
