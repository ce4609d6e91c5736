"""Where in the data a run is, and where in it each recent optimizer step was.

A step's number alone does not tell its place: epochs of a stream differ in length, and an epoch may be left early. So
the start of each pass over an epoch is stored, and steps are counted from there.
"""

from __future__ import annotations

from collections import deque
from typing import Any

REMEMBERED = 256  # starts; losses are read sooner, where an epoch has more than a few steps


class DataPosition:
    """epoch, window: of the next optimizer step; windows count from 0 in each epoch."""

    def __init__(self, steps_per_epoch: int | None) -> None:
        self.epoch, self.window = 0, 0
        self._per_epoch = steps_per_epoch
        self._starts = deque[tuple[int, int, int]](maxlen=REMEMBERED)  # step, epoch, window

    def start_pass(self, next_step: int) -> None:
        """Reading starts here, with this optimizer step."""
        self._starts.append((next_step, self.epoch, self.window))

    def skip_to_next_epoch(self) -> None:
        self.epoch, self.window = self.epoch + 1, 0

    def go_back_to(self, step: int) -> None:
        """That step is the next one; nothing happens where its place is not known."""
        self.epoch, self.window = self.of(step) or (self.epoch, self.window)

    def of(self, step: int) -> tuple[int, int] | None:
        """Epoch and window of a step; None where they are not known."""
        for first, epoch, window in reversed(self._starts):
            if step >= first:
                return epoch, window + step - first
        if not self._starts:
            return None
        first, epoch, window = self._starts[0]
        before = window - (first - step)  # an earlier process took it
        if before >= 0:
            return epoch, before
        whole = None if self._per_epoch is None else epoch * self._per_epoch + before
        return None if whole is None or whole < 0 else divmod(whole, self._per_epoch or 1)

    @property
    def whole_epochs(self) -> int:
        """Epochs of which every step was taken."""
        return self.epoch + (self.window == self._per_epoch)

    @property
    def is_between_epochs(self) -> bool:
        """Whether an epoch has ended and the next has not begun."""
        return self.window == 0 and self.epoch > 0

    def state_dict(self) -> dict[str, Any]:
        return {"epoch": self.epoch, "window": self.window}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.epoch, self.window = state["epoch"], state["window"]
