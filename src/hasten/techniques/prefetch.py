"""Let each loader worker read more or fewer batches ahead.

What it does: sets how many batches each worker reads ahead of the step. The default for a worker process is 2.

Why it is faster: where some samples take far longer than others, batches that are ready cover the wait for a slow one.
On average the workers must still keep up.

When it loses: every batch that is ready takes shared memory, for each worker. The first batch of an epoch comes later
when all workers begin with several at once. Where all samples take the same time, there is no gain.

What it changes: nothing ("bit-exact"). The same batches come in the same order.

Example:

    [[choice]]
    technique = "prefetch"
    value = 4
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.data.loading.loader_options import MOST_AHEAD, most_ahead, room_of
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import whole_number
from hasten.techniques.common.reading_ahead import batch_bytes, batches_ahead, why_nothing_is_read
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

TRIED = (4, 8, 1, 2)
MOST = 64  # batches of one worker; more can only be a mistake


def applies(setup: Setup) -> Yes | No:
    why = why_nothing_is_read(setup)
    if why is not None:
        return No(why)
    if setup.loader.workers == 0:
        return No("there are no loader workers to read ahead")
    if not candidates(setup):
        return No("memory and /dev/shm are too small for another number of batches")
    return Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    workers, room = setup.loader.workers, room_of(setup.machine)
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
    setup.loader.prefetch_factor = whole_number(choice, "how many batches each worker reads ahead", most=MOST)


TECHNIQUE = Technique(
    name="prefetch",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values=f"a whole number, 1 to {MOST}: the batches that each loader worker reads ahead",
    costs=("shared memory for every batch that is read ahead",),
    source="https://docs.pytorch.org/docs/stable/data.html#torch.utils.data.DataLoader",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
