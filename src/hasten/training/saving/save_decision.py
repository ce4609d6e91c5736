"""When a run saves and when it stops: as one process decides by itself, or as several agree on.

Asked after every step, so it does next to nothing.
"""

from __future__ import annotations

from hasten.parallel.launch.agreement import Agreement
from hasten.training.saving.follower_saver import FollowerSaver
from hasten.training.saving.saver import Saver
from hasten.training.saving.stop_request import StopRequest


class Decision:
    """Where several ranks agree, what one of them requests is done one step later, on all of them; what depends on the
    step alone is done at once.

    stop: None where no signal is handled.
    agreement: between the ranks; None for a process that is alone.
    """

    def __init__(
        self,
        saver: Saver | FollowerSaver,
        stop: StopRequest | None,
        every_steps: int | None,
        agreement: Agreement | None,
    ) -> None:
        self._saver, self._stop, self._every_steps = saver, stop, every_steps
        self._agreement, self._requested = agreement, False

    @property
    def alone(self) -> bool:
        return self._agreement is None

    @property
    def stopping(self) -> int:
        """The signal that asked for the end; 0 where none did."""
        return (self._stop.number or 0) if self._stop is not None else 0

    def after(self, step: int) -> tuple[bool, int]:
        """Whether to save after this step; and the signal that asked for the end, 0 where none did."""
        due, every = self._saver.due(step), self._every_steps
        if self._agreement is None:
            return due, self.stopping
        self._requested = due and every is None and not self._requested  # once for each save
        requested, stopping = self._agreement.of_last_step(self._requested, self.stopping)
        if stopping and self._stop is not None:
            self._stop.ask(stopping)
        return bool(requested) or (every is not None and step % every == 0), stopping

    def anywhere(self, request: bool) -> bool:
        """Whether any process requests this. Where there are several, all of them ask."""
        if self._agreement is None:
            return request
        (found,) = self._agreement.at_once(request)
        return bool(found)

    def meet(self) -> None:
        """Wait until all processes are here."""
        self.anywhere(False)
