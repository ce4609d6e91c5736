"""What follows in a run from an optimizer step whose update did not apply (skips.Aftermath), or should not have."""

from __future__ import annotations

import weakref
from typing import TYPE_CHECKING

from hasten.errors import NonFinite

if TYPE_CHECKING:
    from hasten.training.run import Run


class OfARun:
    def __init__(self, run: Run) -> None:
        # Strongly, it would be a circle, which keeps the model until a collector comes.
        self._run: Run = weakref.proxy(run)

    def skipped(self, step: int) -> None:
        """Loss scaling goes on looking; what overflowed in a forward pass must not stay in batch norm's averages."""
        if self._run._window_start is not None:
            self._run._window_start.heal(step)

    def refused(self, step: int) -> str:
        """Be as the step before left the run; gives the samples of the one that is refused."""
        run, place = self._run, self._run._places.of(step)
        told = run.batch_of(step)
        if run._window_start is not None:
            run._window_start.back(step)
        if place is not None:
            run.epoch, run._window = place
        run._between_windows = run._last = True
        return told


def check_weights(run: Run) -> None:
    """Raises NonFinite where a weight is NaN or infinite that was not so when the run was made.

    A finite gradient times a rate can overflow one. The next step that uses it is refused, but none may come before it
    is saved. It is a look at every weight, so it is for the moments that copy them all anyway. Waits for the device.
    """
    name = run._step.harmed_weight()
    if name is not None:
        raise NonFinite(
            f"{name} is not finite, although every gradient was: an update has overflowed it",
            where=f"after optimizer step {run.steps}",
            fix="use a lower learning rate, or clip_norm=1.0; what was saved before is unharmed",
        )
