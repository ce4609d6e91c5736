"""Which updates applied, and which were skipped because a gradient was not finite.

Schedule, averages and counters move on applied updates alone. Where the device decides, its answer is copied to the
host behind the computation and read before the next update: one step late, never waited for, and still in time for
everything that depends on it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hasten.errors import NonFinite

TOO_MANY_IN_A_ROW = 40  # loss scaling halves each time: from 65,536 this is far below any useful scale


class Skips:
    """applied and skipped count updates since the run began."""

    def __init__(self, device: torch.device, deferred: bool, after_update: Callable[[], None]) -> None:
        self.deferred = deferred
        self.applied = 0
        self.skipped = 0
        self.in_a_row = 0
        self._after_update = after_update
        self._scaling = False
        self._answer: Tensor | None = None
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

    def skip(self, what: str, *, scaling: bool) -> None:
        """Count a skip, for what is not finite. Under loss scaling it is how the scale is found; without, or without
        end, it is an error."""
        self.skipped += 1
        self.in_a_row += 1
        if scaling and self.in_a_row < TOO_MANY_IN_A_ROW:
            return
        often = f", {self.in_a_row} times in a row" if self.in_a_row > 1 else ""
        raise NonFinite(
            f"{what}{often}; the update was not applied and the weights are unharmed",
            where=f"optimizer step {self.attempted}",
            fix="look at this step's batch and loss; a lower learning rate or clip_norm=1.0 is the usual remedy",
        )

    def defer(self, non_finite: Tensor, *, scaling: bool) -> None:
        """Take the device's answer, 0.0 or 1.0, to be read at the next settle()."""
        self._scaling = scaling
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
        if answer:
            self.skip("a gradient, or their norm, is not finite", scaling=self._scaling)
        else:
            self.apply()
