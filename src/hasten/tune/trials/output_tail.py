"""The end of what a process has printed, and how it ended."""

from __future__ import annotations

import os
import signal

KEPT_OUTPUT = 1 << 16  # bytes of what a process has printed last
LAST_WORDS = 500  # characters of it in an error
_PART = 1 << 16
_PARTS = 64  # read at once: between them somebody has to look at the clock


class Tail:
    """Keeps the end of what comes out of a pipe. It takes the descriptor over."""

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


def how_it_ended(exit_code: int) -> str:
    """exit_code: below 0 the number of a signal."""
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
