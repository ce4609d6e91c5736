"""Which updates were applied, and which were skipped because a gradient was not finite.

Schedule, averages and counters change on applied updates only. Where the device decides, its answer is copied to the
host behind the computation and read before the next update: one step late, without a wait, and in time for everything
that depends on it.

A skipped step counts as attempted. A refused step ends the run and does not count: the run is then as the step before
left it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from hasten.errors import NonFinite

TOO_MANY_IN_A_ROW = 40  # loss scaling halves each time: from 65,536 this is far below any useful scale

_FIX = "look at this step's batch and loss; a lower learning rate or clip_norm=1.0 is the usual remedy"


class Rollback(Protocol):
    """Restores what a step has changed before its update was found not to apply. step: its number, from 1 on."""

    def skipped(self, step: int) -> None:
        """Training continues."""

    def refused(self, step: int) -> str:
        """It does not. Returns the samples of the step in words; empty where they are not known."""
        ...


class NoRollback:
    """For steps without anything to restore."""

    def skipped(self, step: int) -> None:
        pass

    def refused(self, step: int) -> str:
        return ""


class Skips:
    """applied and skipped count updates since the run began."""

    def __init__(
        self, device: torch.device, deferred: bool, after_update: Callable[[], None], rollback: Rollback | None = None
    ) -> None:
        """deferred: whether the device decides. after_update: called once for each applied update."""
        self.deferred = deferred
        self.applied = 0
        self.skipped = 0
        self.in_a_row = 0
        self._after_update, self._rollback = after_update, rollback or NoRollback()
        self._answer: Tensor | None = None
        self._why: Callable[[], str] = str  # the reason, if the answer is 1
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
        """Skip a step. Under loss scaling that is how the scale is found; otherwise, or after too many in a row, the
        step is refused with the reason that `why` gives: NonFinite."""
        step = self.attempted + 1
        if scaling and self.in_a_row + 1 < TOO_MANY_IN_A_ROW:
            self.skipped += 1
            self.in_a_row += 1
            self._rollback.skipped(step)
            return
        what, where = why(), f"optimizer step {step}"
        if self.in_a_row:
            what, where = (
                f"{what}; so it was {self.in_a_row + 1} times in a row",
                f"{where}, after {self.in_a_row} skipped",
            )
        samples = self._rollback.refused(step)
        raise NonFinite(what, where=f"{where} ({samples})" if samples else where, fix=_FIX)

    def defer(self, non_finite: Tensor, why: Callable[[], str], *, scaling: bool) -> None:
        """Take the device's answer, 0.0 or 1.0, to be read at the next settle(); and the reason for a 1.0."""
        self._why, self._scaling = why, scaling
        if self._copied is None:
            self._answer = non_finite.clone()  # its owner clears it
            return
        self._answer = torch.empty((), pin_memory=True).copy_(non_finite, non_blocking=True)
        self._copied.record()

    def settle(self) -> None:
        """Act on the last deferred answer, if there is one."""
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
