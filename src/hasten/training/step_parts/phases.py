"""The boundaries inside a step, for an observer such as the doctor's clock."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto


class Phase(Enum):
    """What has just begun or ended. Batches are placed, and microbatches begin and end, in this order; an update
    follows a window's last microbatch. Evaluations place batches as well."""

    PLACING = auto()  # a batch is about to be put on the device
    PLACED = auto()
    READY = auto()  # a microbatch is here, and its forward pass begins
    FORWARD = auto()  # the forward pass and the loss are over
    BACKWARD = auto()  # the backward pass is over, with weighing and loss scaling
    UPDATE = auto()  # gradients were divided, unscaled, checked, clipped and applied, or the step was skipped


Observer = Callable[[Phase], None]


def ignore(phase: Phase) -> None:
    """The observer of a run that nobody observes."""
