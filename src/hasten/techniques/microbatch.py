"""Choose how many samples go through the model at once, separately from how many make one update.

What it does: splits every batch into microbatches of the given size (the last may be smaller), sums their gradients,
and updates once. The batch size, the learning rate, the schedule and the number of updates do not change.

Why it is faster: the best size for the hardware is rarely the best size for learning. A smaller microbatch keeps
activations in a cache, or lets them fit into memory. `hasten tune` measures which size is fastest.

When it loses: small microbatches use an accelerator less well, and each launches every kernel again.

What it changes: rounding only ("equal up to rounding"), because sums are added in another order. Batch norm in training
mode makes it "same statistics": it normalizes each microbatch by its own mean and variance, and updates its running
averages once for each. A loss with state of its own makes it "changes training": the state changes once for each.

Limits: the batch size must be known. A plan cannot combine it with `accumulation` or `pipeline`.

Example:

    [[choice]]
    technique = "microbatch"
    value = 32
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


def halves(batch_size: int) -> list[int]:
    """The batch halved repeatedly, rounded up, down to one sample; without the batch itself."""
    sizes: list[int] = []
    while batch_size > 1:
        batch_size = (batch_size + 1) // 2
        sizes.append(batch_size)
    return sizes


def applies(setup: Setup) -> Yes | No:
    return can_be_split(setup)


def candidates(setup: Setup) -> Sequence[Choice]:
    preserves = split_preserves(setup)
    return [Choice(technique="microbatch", value=size, preserves=preserves) for size in halves(whole_batch(setup) or 1)]


def apply(setup: Setup, choice: Choice) -> None:
    size, batch_size = choice.value, whole_batch(setup)
    if not is_whole(size) or (batch_size and size >= batch_size):
        most = f"{batch_size - 1}, for a batch of {batch_size}" if batch_size else "one less than the batch"
        raise refused(choice, f"write how many samples go through the model at once: from 1 to {most}")
    split_batch(setup, size)


TECHNIQUE = Technique(
    name="microbatch",
    stage=Stage.STEP,
    treats=Symptom.MEMORY_FULL,
    values="a whole number, less than the batch size: the samples that go through the model at once",
    costs=("several forward and backward passes for each update",),
    source="https://arxiv.org/abs/1806.00187",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
