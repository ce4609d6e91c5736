"""When a run saves and when it stops: as one process decides by itself, or as several agree on.

Asked after every step, so both do next to nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from hasten.parallel.launch.agreement import Agreement

if TYPE_CHECKING:
    from hasten.training.saving.stop_request import StopRequest


class Clock(Protocol):
    """What knows when the next checkpoint is due."""

    def due(self, step: int) -> bool: ...


class Own:
    """Of a process that is alone. stop: None where no signal is heeded."""

    alone = True

    def __init__(self, clock: Clock, stop: StopRequest | None) -> None:
        self._clock, self._stop = clock, stop

    def after(self, step: int) -> tuple[bool, int]:
        """Whether a checkpoint is due after this step; and the signal that asked for the end, 0 where none did."""
        return self._clock.due(step), self.stopping

    @property
    def stopping(self) -> int:
        return (self._stop.number or 0) if self._stop is not None else 0

    def anywhere(self, wish: bool) -> bool:
        """Whether any process wants this. Where there are several, all of them ask."""
        return wish

    def meet(self) -> None:
        """Wait until all processes are here."""


class Shared:
    """Of all ranks. What one of them wants comes one step later, on all; what depends on the step alone, at once."""

    alone = False

    def __init__(self, agreement: Agreement, clock: Clock, stop: StopRequest | None, every_steps: int | None) -> None:
        self._own, self._stop, self._every_steps = Own(clock, stop), stop, every_steps
        self._agreement, self._waits = agreement, False

    def after(self, step: int) -> tuple[bool, int]:
        due, stopping = self._own.after(step)
        wish = due and self._every_steps is None and not self._waits  # a wish is one until it has come
        self._waits = wish
        due, stopping = self._agreement.of_last_step(wish, stopping)
        if stopping and self._stop is not None:
            self._stop.ask(stopping)
        return bool(due) or (self._every_steps is not None and step % self._every_steps == 0), stopping

    @property
    def stopping(self) -> int:
        return self._own.stopping

    def anywhere(self, wish: bool) -> bool:
        (found,) = self._agreement.at_once(wish)
        return bool(found)

    def meet(self) -> None:
        self._agreement.at_once(0)
