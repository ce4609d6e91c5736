"""Compute the gradient of a batch in k parts, one after the other, and update once.

What it does: splits every batch into microbatches of its size divided by k, rounded up, and sums their gradients before
the one update. The batch, and with it the learning rate, the schedule and the number of updates, stay as they are.

Why it is faster: only one microbatch's activations are in memory at a time, so a batch that would not fit, or would
force recomputation, runs; and on a CPU a smaller working set may stay in the cache.

When it loses: where the whole batch fits, small microbatches use an accelerator less well and launch k times the
kernels.

What it gave up: rounding, as sums are taken in another order. Batch norm in training mode is different: it normalises
each microbatch by its own mean and variance and moves its running averages k times, so the result only resembles that
of the whole batch."""

from __future__ import annotations

from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.machine import Machine
from hasten.techniques.common.batch_split import can_be_split, split_batch, split_preserves, whole_batch
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

PARTS = (2, 4, 8)


def size_of_part(batch_size: int, parts: int) -> int:
    """Samples in each microbatch; rounded up, so that there are never more than `parts` of them."""
    return -(-batch_size // parts)


def applies(setup: Setup, machine: Machine) -> Yes | No:
    return can_be_split(setup)


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    preserves, batch_size = split_preserves(setup), whole_batch(setup) or 1
    return [Choice(technique="accumulation", value=k, preserves=preserves) for k in PARTS if k <= batch_size]


def apply(setup: Setup, choice: Choice) -> None:
    parts, batch_size = choice.value, whole_batch(setup)
    if batch_size is None:
        raise PlanError(
            "the job does not say how many samples a batch has", where="accumulation", fix="write batch_size"
        )
    if not isinstance(parts, int) or isinstance(parts, bool) or not 2 <= parts <= batch_size:
        raise PlanError(
            f"is {parts!r}, for a batch of {batch_size}",
            where="accumulation",
            fix=f"write into how many parts the batch is split: a whole number from 2 to {batch_size}",
        )
    split_batch(setup, size_of_part(batch_size, parts), "accumulation")


TECHNIQUE = Technique(
    name="accumulation",
    stage=Stage.STEP,
    treats=Symptom.MEMORY_FULL,
    values="into how many parts each batch is split: a whole number, 2 or more",
    costs=("several forward and backward passes for each update",),
    source="https://arxiv.org/abs/1806.00187",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
