"""Tell where a run is inside its steps, without a change to what it trains.

    with phases_told(run, tell):
        ...                         # run.step(batch) as ever; tell(phase) is called at every boundary

The functions that lie between boundaries are wrapped on the one run that is watched and put back afterwards, so that a
run that nobody watches pays nothing. Batches are placed, and microbatches begin and end, in the order of Phase; a
window's last microbatch alone is followed by an update. Evaluations place batches as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from enum import Enum, auto
from typing import Any

from hasten.training.run import Run
from hasten.training.step import Step


class Phase(Enum):
    """A boundary: what has just begun or ended."""

    PLACING = auto()  # a batch is about to be put on the device
    PLACED = auto()
    READY = auto()  # a microbatch is here, and its forward pass begins
    FORWARD = auto()  # the forward pass and the loss are over
    BACKWARD = auto()  # the backward pass is over, what weighs and scales the loss included
    UPDATE = auto()  # the gradients were divided, unscaled, looked at, clipped and applied, or skipped


@contextmanager
def phases_told(run: Run, tell: Callable[[Phase], None]) -> Iterator[None]:
    """What `tell` raises passes through the step, as an exception of the job's loss does."""
    with ExitStack() as undo:
        _wrap(undo, run, "_placed", tell, Phase.PLACING, Phase.PLACED)
        _wrap(undo, run._step, "accumulate", tell, Phase.READY, Phase.BACKWARD)
        _wrap(undo, run._step, "update", tell, None, Phase.UPDATE)
        _wrap_forward(undo, run._step, tell)
        yield


def _wrap(
    undo: ExitStack, owner: object, name: str, tell: Callable[[Phase], None], before: Phase | None, after: Phase
) -> None:
    """Hide a method of one object behind a function that tells; the class keeps its own."""
    method = getattr(owner, name)

    def told(*arguments: Any) -> Any:
        if before is not None:
            tell(before)
        returned = method(*arguments)
        tell(after)
        return returned

    setattr(owner, name, told)
    undo.callback(delattr, owner, name)


def _wrap_forward(undo: ExitStack, step: Step, tell: Callable[[Phase], None]) -> None:
    forward = step._forward

    def told(batch: Any) -> Any:
        nonlocal forward
        returned = forward(batch)
        if step._forward is not told:  # the first forward pass of all puts the usual one in its place
            forward, step._forward = step._forward, told
        tell(Phase.FORWARD)
        return returned

    def put_back() -> None:
        step._forward = forward

    step._forward = told
    undo.callback(put_back)
