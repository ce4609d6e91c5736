"""How far a long piece of work has come: a bar on a terminal, a line for every tenth elsewhere.

Work of less than two seconds shows nothing: a bar that flashes up only disturbs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, TextIO

from hasten.report.display import percent, printable, time_left
from hasten.report.terminal.output import bar, console_on, is_plain, write_line

if TYPE_CHECKING:
    from rich.live import Live

PATIENCE_SECONDS = 2.0
REFRESH_SECONDS = 0.1


class Waiting:
    """Call it with (done, whole), as often as you like; close it at the end, whatever happened.

    what: is going on, such as "packing". stream: where to write; None is standard error as it is now, so that what a
    command answers stays apart.
    """

    def __init__(self, what: str, stream: TextIO | None = None, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._what, self._stream, self._clock = printable(what), stream or sys.stderr, clock
        self._began = self._shown = clock()
        self._plain = is_plain(self._stream)
        self._tenths = 0  # that plain lines have told
        self._live: Live | None = None  # the bar, once there is one

    def __call__(self, done: int, whole: int) -> None:
        now = self._clock()
        if whole <= 0 or now - self._began < PATIENCE_SECONDS or now - self._shown < REFRESH_SECONDS:
            return
        self._shown = now
        share = min(done / whole, 1.0)
        left = f", {time_left((now - self._began) * (1 - share) / share)} left" if 0 < share < 1 else ""
        if not self._plain:
            self._draw(share, f"{percent(share)}{left}")
        elif int(share * 10) > self._tenths:
            self._tenths = int(share * 10)
            write_line(self._stream, f"{self._what}: {percent(share)}{left}")

    def close(self) -> None:
        """Take the bar away. A line that was written stays."""
        if self._live is not None:
            self._live.stop()

    def _draw(self, share: float, text: str) -> None:
        from rich.live import Live

        if self._live is None:
            self._live = Live(console=console_on(self._stream), auto_refresh=False, transient=True)
            self._live.start()
        self._live.update(bar(self._what, share, 1.0, text), refresh=True)
