"""Progress of a long piece of work: a bar on a terminal; elsewhere a line for every tenth, and after a long silence.

Work of less than two seconds shows nothing: a bar that flashes up only disturbs.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

from hasten.report.display import percent, time_left
from hasten.report.terminal.output import Output, bar

PATIENCE_SECONDS = 2.0
SILENT_SECONDS = 10.0  # after which a stream where lines stay gets a line, whatever is done
REFRESH_SECONDS = 0.1


class ProgressBar:
    """Call it with (done, whole) as often as you like; close it at the end, whatever happened.

    what: the work, such as "packing". stream: None is the present standard error. is_shown: not with --quiet.
    """

    def __init__(
        self,
        what: str,
        stream: TextIO | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        is_shown: bool = True,
    ) -> None:
        self._what, self._output, self._clock, self._is_shown = what, Output(stream or sys.stderr), clock, is_shown
        self._began = self._shown = clock()
        self._tenths, self._line_at = 0, self._began  # that plain lines have shown, and when

    def __call__(self, done: int, whole: int, phase: str = "") -> None:
        """phase: of the work, such as "round 2 of 6"."""
        now = self._clock()
        if not self._is_shown or now - self._began < PATIENCE_SECONDS or now - self._shown < REFRESH_SECONDS:
            return
        self._shown = now
        share = min(done / max(whole, 1), 1.0)
        left = f", {time_left((now - self._began) * (1 - share) / share)} left" if 0 < share < 1 else ""
        done_so_far = percent(share) if done else f"{time_left(now - self._began)} so far"
        text = f"{done_so_far}{left}" + (f", {phase}" if phase else "")
        if not self._output.is_plain:
            self._output.redraw(bar(self._what, share, 1.0, text))
        elif int(share * 10) > self._tenths or now - self._line_at >= SILENT_SECONDS:
            self._tenths, self._line_at = int(share * 10), now
            self._output.note(self._what, text)

    def close(self) -> None:
        """Remove the bar. A line that was written stays."""
        self._output.close()
