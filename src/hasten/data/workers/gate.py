"""A gate that all loader threads of a process go through before every batch, and that can be shut.

A process that is forked while threads run inherits every lock that one of them holds (of an import, of a decoder, of
the data set), and nobody in it ever gives that back. That happens where the training is read by threads and the
evaluation by worker processes. So the threads rest, between two batches, while workers are forked.

A data set that is read by threads must not start workers of its own inside a sample: they would wait for the batch that
waits for them.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Condition


class Gate:
    """Through it go all loader threads of this process, before every batch, unless it is shut."""

    def __init__(self) -> None:
        self._changed, self._reading, self._shut = Condition(), 0, 0

    def __enter__(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: not self._shut)
            self._reading += 1

    def __exit__(self, *raised: object) -> None:
        with self._changed:
            self._reading -= 1
            if self._shut:
                self._changed.notify_all()

    @contextmanager
    def shut(self, seconds: float) -> Iterator[bool]:
        """The value is whether all are outside, within so many seconds."""
        with self._changed:
            self._shut += 1
            try:
                outside = self._changed.wait_for(lambda: not self._reading, seconds)
            except BaseException:
                self._open()
                raise
        try:
            yield outside
        finally:
            with self._changed:
                self._open()

    def _open(self) -> None:
        self._shut -= 1
        self._changed.notify_all()


GATE = Gate()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=GATE.__init__)  # the child has none of these threads, and may make its own
