"""Which updates applied, and which were skipped because a gradient was not finite.

Schedule, averages and counters move on applied updates alone. Where the device decides, its answer is copied to the
host behind the computation and read before the next update: one step late, never waited for, and still in time for
everything that depends on it.

A step is skipped, which counts, or refused, which ends the run and does not: the run is then as the step before it left
it. Putting back what else the step has moved is the business of `Aftermath`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hasten.errors import NonFinite

TOO_MANY_IN_A_ROW = 40  # loss scaling halves each time: from 65,536 this is far below any useful scale

_FIX = "look at this step's batch and loss; a lower learning rate or clip_norm=1.0 is the usual remedy"


class Aftermath(Protocol):
    """What follows from a step, by its number from 1 on, whose update did not apply."""

    def skipped(self, step: int) -> None:
        """Training goes on."""

    def refused(self, step: int) -> str:
        """It does not. Gives in words which samples the step took; empty where that is not known."""
        ...


class Nothing:
    """An Aftermath of steps that stand alone."""

    def skipped(self, step: int) -> None:
        pass

    def refused(self, step: int) -> str:
        return ""


class Skips:
    """applied and skipped count updates since the run began."""

    def __init__(
        self, device: torch.device, deferred: bool, after_update: Callable[[], None], aftermath: Aftermath | None = None
    ) -> None:
        self.deferred = deferred
        self.applied = 0
        self.skipped = 0
        self.in_a_row = 0
        self._after_update, self._aftermath = after_update, aftermath or Nothing()
        self._answer: Tensor | None = None
        self._why: Callable[[], str] = str  # of the answer, were it no
        self._scaling = False
        self._copied = torch.cuda.Event() if device.type == "cuda" else None

    @property
    def attempted(self) -> int:
        return self.applied + self.skipped + (self._answer is not None)

    def applied_reach(self, wanted: int) -> bool:
        """Whether `wanted` updates were applied; waits for the device only when its last answer decides that."""
        if self._answer is not None and self.applied + 1 >= wanted:
            self.settle()
        return self.applied >= wanted

    def apply(self) -> None:
        self.applied += 1
        self.in_a_row = 0
        self._after_update()

    def skip(self, why: Callable[[], str], *, scaling: bool) -> None:
        """Leave a step out. Under loss scaling that is how the scale is found; without, or without end, the step is
        refused with the reason that `why` gives: NonFinite."""
        step = self.attempted + 1
        if scaling and self.in_a_row + 1 < TOO_MANY_IN_A_ROW:
            self.skipped += 1
            self.in_a_row += 1
            self._aftermath.skipped(step)
            return
        what, where = why(), f"optimizer step {step}"
        if self.in_a_row:
            what, where = (
                f"{what}; so it was {self.in_a_row + 1} times in a row",
                f"{where}, after {self.in_a_row} skipped",
            )
        samples = self._aftermath.refused(step)
        raise NonFinite(what, where=f"{where} ({samples})" if samples else where, fix=_FIX)

    def defer(self, non_finite: Tensor, why: Callable[[], str], *, scaling: bool) -> None:
        """Take the device's answer, 0.0 or 1.0, to be read at the next settle(); with the reason for a 1.0."""
        self._why, self._scaling = why, scaling
        if self._copied is None:
            self._answer = non_finite.clone()  # its owner clears it
            return
        self._answer = torch.empty((), pin_memory=True).copy_(non_finite, non_blocking=True)
        self._copied.record()

    def settle(self) -> None:
        """Make up what the last deferred answer decides; nothing where none is open."""
        if self._answer is None:
            return
        if self._copied is not None:
            self._copied.synchronize()
        answer, self._answer = self._answer.item(), None
        why, self._why = self._why, str
        if answer:
            self.skip(why, scaling=self._scaling)
        else:
            self.apply()
