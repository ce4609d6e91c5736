"""Take another number of samples into each optimizer step.

What it does: replaces the job's batch, over all microbatches and devices. The order of the samples stays and is cut
elsewhere, and what follows from the number of batches follows: the steps of an epoch, the planned steps, and a schedule
that is made for them. What the job states in steps (`max_steps`, `evaluate_every`, a scheduler's own milestones) stays
in steps, and so covers other samples. The learning rate stays as it is. Evaluations take the new batch as well, unless
they have one of their own.

Why it is faster: a larger batch uses a device better, and its gradient is less noisy, so fewer steps may do; a smaller
one updates more often on the same samples, and may learn more from each pass over them.

When it loses: beyond a size that depends on the job, a larger batch needs as many steps as before, and each takes
longer; it may not fit into memory. A smaller one uses a device less well. The best learning rate moves with the batch,
so either can look worse than it is.

What it gave up: the training is another one, to be judged by where it ends. To hold the batch and take it in parts, see
`microbatch`.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.common.batch_split import whole_batch
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if whole_batch(setup) is None:
        return No("the job does not say how many samples a batch has")
    return Yes() if neighbours(setup) else No("an epoch is one batch of one sample")


def neighbours(setup: Setup) -> list[int]:
    """Twice the batch, where an epoch has so many samples or does not say how many, and half of it, rounded up."""
    size, samples = whole_batch(setup) or 1, None if setup.train is None else setup.train.count
    sizes = [2 * size] if samples is None or samples >= 2 * size else []
    return sizes + ([(size + 1) // 2] if size > 1 else [])


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="batch_size", value=size, preserves=Preserves.TRAINING) for size in neighbours(setup)]


def apply(setup: Setup, choice: Choice) -> None:
    size = choice.value
    if not isinstance(size, int) or isinstance(size, bool) or size < 1 or choice.options:
        raise PlanError(
            f"the plan asks for {choice}",
            where="batch_size",
            fix="write a whole number of samples, 1 or more, without options",
        )
    setup.batch_size = size


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
