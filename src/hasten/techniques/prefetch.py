"""Let each loader worker keep more or fewer batches ready.

What it does: sets how many batches each worker reads ahead of the step. Unsaid, a worker process keeps 2.

Why it is faster: where some samples take far longer than others, batches that are ready already bridge the wait for a
slow one. On average the workers must keep up all the same.

When it loses: every batch that is ready is held in shared memory, for each worker. The first batch of an epoch comes
later when all workers begin with several at once. Where samples take even times, nothing is won.

What it gave up: nothing. The same batches come in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.data.loading.limits import MOST_AHEAD, most_ahead, room_of
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.common.reading_ahead import batch_bytes, batches_ahead, why_nothing_is_read
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

TRIED = (4, 8, 1, 2)
MOST = 64  # batches of one worker; more can only be a slip


def applies(setup: Setup, machine: Machine) -> Yes | No:
    why = why_nothing_is_read(setup)
    if why is not None:
        return No(why)
    if setup.loader.workers == 0:
        return No("there are no loader workers that could read ahead")
    if not candidates(setup, machine):
        return No("memory and /dev/shm have room for no other number of batches")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    workers, room = setup.loader.workers, room_of(machine)
    if workers == 0:
        return []
    size = batch_bytes(setup, room, workers=workers, ahead=MOST_AHEAD)
    most = most_ahead(room, workers=workers, batch_bytes=size)
    return [
        Choice(technique="prefetch", value=ahead, preserves=Preserves.BITS)
        for ahead in TRIED
        if ahead <= most and ahead != batches_ahead(setup)
    ]


def apply(setup: Setup, choice: Choice) -> None:
    ahead = choice.value
    if not isinstance(ahead, int) or isinstance(ahead, bool) or not 1 <= ahead <= MOST or choice.options:
        raise PlanError(
            f"the plan asks for {choice}",
            where="prefetch",
            fix=f"write how many batches each loader worker keeps ready, 1 to {MOST}, without options",
        )
    setup.loader.prefetch_factor = ahead


TECHNIQUE = Technique(
    name="prefetch",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values=f"batches that each loader worker keeps ready: a whole number, 1 to {MOST}",
    costs=("shared memory for every batch that is ready",),
    source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
