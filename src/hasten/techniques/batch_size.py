"""Use another number of samples for each optimizer step.

What it does: replaces the job's batch size, over all microbatches and devices. The order of samples stays. The number
of steps in an epoch, the planned steps, and a schedule derived from them follow. What the job states in steps
(`max_steps`, `evaluate_every`, a scheduler's own milestones) stays in steps, and so covers other samples. The learning
rate does not change. Evaluations use the new batch size too, unless they have one of their own.

Why it is faster: a larger batch uses a device better and its gradient has less noise, so fewer steps may suffice. A
smaller batch updates more often, and may learn more from each epoch.

When it loses: beyond a size that depends on the job, a larger batch needs as many steps as before, and each takes
longer; it may not fit into memory. A smaller batch uses a device less well. The best learning rate depends on the batch
size, so either can look worse than it is with the right one.

What it gave up: training changes, so it is judged by its final result. To keep the batch and split it, see
`microbatch`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.techniques.common.batch_split import whole_batch
from hasten.techniques.common.plan_values import refused, whole_number
from hasten.techniques.contract import Choice, No, Preserves, Setup, Stage, Symptom, Technique, Yes


def applies(setup: Setup) -> Yes | No:
    if whole_batch(setup) is None:
        return No("the job does not say how many samples a batch has")
    if setup.train is not None and setup.train.batches is not None:
        return No("the DataLoader's batch_sampler decides what a batch is")
    return Yes() if neighbours(setup) else No("an epoch is one batch of one sample")


def neighbours(setup: Setup) -> list[int]:
    """Twice the batch, where an epoch has enough samples or an unknown number, and half of it, rounded up."""
    size, samples = whole_batch(setup) or 1, None if setup.train is None else setup.train.count
    sizes = [2 * size] if samples is None or samples >= 2 * size else []
    return sizes + ([(size + 1) // 2] if size > 1 else [])


def candidates(setup: Setup) -> Sequence[Choice]:
    return [Choice(technique="batch_size", value=size, preserves=Preserves.TRAINING) for size in neighbours(setup)]


def apply(setup: Setup, choice: Choice) -> None:
    if setup.train is not None and setup.train.batches is not None:
        raise refused(choice, "change the DataLoader's batch_sampler, which decides what a batch is")
    setup.batch_size = whole_number(choice, "the number of samples in a step")


TECHNIQUE = Technique(
    name="batch_size",
    stage=Stage.DATA,
    treats=Symptom.SLOW_CONVERGENCE,
    values="samples in one optimizer step: a whole number, 1 or more",
    costs=("may end at another loss", "a larger batch takes more memory"),
    source="https://arxiv.org/abs/1811.03600",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
