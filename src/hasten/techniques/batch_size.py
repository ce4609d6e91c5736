"""Use another number of samples for each optimizer step.

What it does: replaces the job's batch size, over all microbatches and devices. The number of steps in an epoch, the
planned steps, and a schedule derived from them follow. Settings in steps (`max_steps`, `evaluate_every`, milestones of
a scheduler) keep their numbers, and so cover another number of samples. The order of samples and the learning rate do
not change. Evaluations use the new batch size too, unless they have their own.

Why it is faster: a larger batch uses a device better, and its gradient has less noise, so fewer steps may suffice. A
smaller batch updates more often, and may learn more from each epoch.

When it loses: beyond a size that depends on the job, a larger batch needs as many steps as before, and each takes
longer. It may not fit into memory. A smaller batch uses a device less well. The best learning rate depends on the batch
size, so a new size can look worse than it is at its best rate.

What it changes: training ("changes training"). `hasten tune` tries it only with `--allow training`, and judges it by
the time to the target. To keep the batch size and only split the batch, use `microbatch`.

Limits: the batch size must be known. A DataLoader with a `batch_sampler` is refused.

Example:

    [[choice]]
    technique = "batch_size"
    value = 256
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.batch_split import whole_batch
from hasten.techniques.common.plan_values import refused, whole_number
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup


def applies(setup: Setup) -> Yes | No:
    if whole_batch(setup) is None:
        return No("the batch size is unknown; write Job.batch_size")
    if setup.train is not None and setup.train.batches is not None:
        return No("the DataLoader's batch_sampler sets the batch size")
    return Yes() if neighbours(setup) else No("an epoch has only one sample")


def neighbours(setup: Setup) -> list[int]:
    """Twice the batch, where an epoch has enough samples or an unknown number, and half of it, rounded up."""
    size, samples = whole_batch(setup) or 1, None if setup.train is None else setup.train.count
    sizes = [2 * size] if samples is None or samples >= 2 * size else []
    return sizes + ([(size + 1) // 2] if size > 1 else [])


def candidates(setup: Setup) -> Sequence[Choice]:
    return [Choice(technique="batch_size", value=size, preserves=Preserves.TRAINING) for size in neighbours(setup)]


def apply(setup: Setup, choice: Choice) -> None:
    if setup.train is not None and setup.train.batches is not None:
        raise refused(choice, "change the DataLoader's batch_sampler, which sets the batch size")
    setup.batch_size = whole_number(choice, "the number of samples in a step")


TECHNIQUE = Technique(
    name="batch_size",
    stage=Stage.DATA,
    treats=Symptom.SLOW_CONVERGENCE,
    values="a whole number, 1 or more: the samples in one optimizer step",
    costs=("the final loss may differ", "a larger batch takes more memory"),
    source="https://arxiv.org/abs/1811.03600",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
