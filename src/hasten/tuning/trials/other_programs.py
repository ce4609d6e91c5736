"""Measures again what other programs disturbed.

While another program uses the processor, one compute thread can be faster than two, and a search would prove what the
load did. So measurements during which other programs took processor time that the arms could have used are dropped
(measure/processor_load.py), and repeated once the machine is quiet. The load alone decides, never a measured second.

The search waits for at most as long as it was asked to take. Then it ends without a verdict: NotMeasurable.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from hasten.errors import NotMeasurable
from hasten.facts.trials import Doing
from hasten.measure.processor_load import Load, LoadClock, busiest
from hasten.tuning.trials.process_tree import processor_seconds

CHECK_SECONDS = 1.0  # between two checks of a machine that is not quiet
LONGEST_WAIT_SECONDS = 5.0  # before another try: what others use may be a core that no arm needs
WHEN_QUIET = (
    "run the same command when the machine is quiet, which continues this search; on a machine that is never quiet, "
    "add --busy"
)

Answer = TypeVar("Answer")


class OtherPrograms:
    """patience_seconds: of waiting and of measuring again, in all; None keeps every measurement. report: receives what
    is waited for. lost_seconds: that were waited or measured in vain so far. clock, pause: for tests."""

    def __init__(
        self,
        patience_seconds: float | None,
        report: Callable[[Doing], None] = lambda doing: None,
        *,
        clock: Callable[[], LoadClock] = lambda: LoadClock(lambda: processor_seconds(os.getpid())),
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._patience_seconds, self._report, self._clock, self._pause = patience_seconds, report, clock, pause
        self._seconds = self._others_seconds = 0.0  # of what was kept
        self.lost_seconds = 0.0
        self._has_warned = False

    @property
    def are_avoided(self) -> bool:
        """Whether only undisturbed measurements are kept."""
        return self._patience_seconds is not None

    @property
    def share(self) -> float:
        """Of the processor, that they took during the measurements that were kept."""
        return self._others_seconds / self._seconds if self._seconds else 0.0

    def undisturbed(self, do: Callable[[], Answer]) -> Answer:
        """What `do` returns while other programs leave the processor to it.

        Raises NotMeasurable when the patience is over."""
        return self.all_undisturbed([do], lambda: None)[0]

    def all_undisturbed(self, parts: Sequence[Callable[[], Answer]], undo: Callable[[], object]) -> list[Answer]:
        """As undisturbed, of several parts, which are dropped together: undo drops what they have measured. Each is
        counted by itself: a part that leaves cores idle does not hide what other programs take from the next."""
        while True:
            found, loads = list[Answer](), list[Load]()
            for do in parts:
                clock = self._clock()
                found.append(do())
                loads.append(clock.load())
            load = busiest(loads)
            if self._patience_seconds is None or not load.disturbs:
                self._seconds += load.seconds
                self._others_seconds += load.share * load.seconds
                return found
            undo()
            self._lose(load, self._patience_seconds)
            self._wait(load, self._patience_seconds)

    def _wait(self, load: Load, patience_seconds: float) -> None:
        """Until they leave the processor alone, or for so long that another try is worth it."""
        if not self._has_warned:
            self._has_warned = True
            what = f"{_taken(load)}: what is measured meanwhile is dropped and measured again"
            self._report(Doing(what=what, stays=True))
        waited_seconds = 0.0
        while not load.is_quiet and waited_seconds < LONGEST_WAIT_SECONDS:
            left = max(0.0, patience_seconds - self.lost_seconds)
            self._report(Doing(what=f"waiting: {_taken(load)}", seconds_left=left, waits=True))
            clock = self._clock()
            self._pause(CHECK_SECONDS)
            load = clock.load()
            waited_seconds += load.seconds
            self._lose(load, patience_seconds)

    def _lose(self, load: Load, patience_seconds: float) -> None:
        self.lost_seconds += load.seconds
        if self.lost_seconds > patience_seconds and not load.is_quiet:
            lost = f"{self.lost_seconds:.0f} s of waiting and of measurements that were dropped"
            raise NotMeasurable(f"not measurable now: {_taken(load)}, after {lost}", fix=WHEN_QUIET)


def _taken(load: Load) -> str:
    cores = "core" if load.cores == 1 else "cores"
    share = f"{100 * load.share:.0f} %"
    return f"other programs take {share} of the processor ({load.others:.1f} of {load.cores} {cores})"
