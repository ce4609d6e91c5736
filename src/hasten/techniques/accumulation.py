"""Split each batch into k microbatches, sum their gradients, and update once.

What it does: a microbatch has the batch size divided by k samples, rounded up. The batch size, the learning rate, the
schedule and the number of updates do not change.

Why it is faster: memory holds the activations of only one microbatch at a time. So a batch fits that otherwise would
not, or would need recomputation. On a CPU, a smaller working set may stay in the cache.

When it loses: where the whole batch fits. Small microbatches use an accelerator less well, and each microbatch launches
every kernel again.

What it changes: rounding only ("equal up to rounding"), because sums are added in another order. Batch norm in training
mode makes it "same statistics": it normalizes each microbatch by its own mean and variance, and updates its running
averages once for each. A loss with state of its own makes it "changes training": the state changes once for each.

Limits: the batch size must be known. A plan cannot combine it with `microbatch` or `pipeline`.

Example:

    [[choice]]
    technique = "accumulation"
    value = 4
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.facts.choice import Choice
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.batch_split import can_be_split, split_batch, split_preserves, whole_batch
from hasten.techniques.common.plan_values import is_whole, refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

PARTS = (2, 4, 8)


def size_of_part(batch_size: int, parts: int) -> int:
    """Samples in each microbatch; rounded up, so that there are never more than `parts` of them."""
    return -(-batch_size // parts)


def applies(setup: Setup) -> Yes | No:
    return can_be_split(setup)


def candidates(setup: Setup) -> Sequence[Choice]:
    preserves, batch_size = split_preserves(setup), whole_batch(setup) or 1
    return [Choice(technique="accumulation", value=k, preserves=preserves) for k in PARTS if k <= batch_size]


def apply(setup: Setup, choice: Choice) -> None:
    parts, batch_size = choice.value, whole_batch(setup)
    if batch_size is None:
        raise refused(choice, "write Job.batch_size: the job does not say how many samples a batch has")
    if not is_whole(parts, 2) or parts > batch_size:
        raise refused(
            choice, f"write the number of parts of a batch of {batch_size}: a whole number, 2 to {batch_size}"
        )
    split_batch(setup, size_of_part(batch_size, parts))


TECHNIQUE = Technique(
    name="accumulation",
    stage=Stage.STEP,
    treats=Symptom.MEMORY_FULL,
    values="a whole number, 2 or more: the microbatches of each batch",
    costs=("several forward and backward passes for each update",),
    source="https://arxiv.org/abs/1806.00187",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
