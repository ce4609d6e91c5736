"""Where in the data an optimizer step lies: its epoch and its number in that, from 0 on.

A step's number alone does not tell: a stream's epochs have lengths of their own, and an epoch may be left early. So it
is remembered where each reading of an epoch began, and counted from there; nothing is done for a step.
"""

from __future__ import annotations

from collections import deque

REMEMBERED = 256  # beginnings; losses are looked at sooner, where an epoch has more than a few steps


class Places:
    def __init__(self, steps_per_epoch: int | None) -> None:
        self._per_epoch = steps_per_epoch
        self._beginnings = deque[tuple[int, int, int]](maxlen=REMEMBERED)  # step, epoch, number in it

    def begin(self, step: int, epoch: int, number: int) -> None:
        """The step of this number is the first of those that follow, and lies there."""
        self._beginnings.append((step, epoch, number))

    def of(self, step: int) -> tuple[int, int] | None:
        """Epoch and number in it; None where that is not known."""
        for first, epoch, number in reversed(self._beginnings):
            if step >= first:
                return epoch, number + step - first
        if not self._beginnings:
            return None
        first, epoch, number = self._beginnings[0]
        before = number - (first - step)  # an earlier process took it
        if before >= 0:
            return epoch, before
        whole = None if self._per_epoch is None else epoch * self._per_epoch + before
        return None if whole is None or whole < 0 else divmod(whole, self._per_epoch or 1)
