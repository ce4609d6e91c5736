"""Evaluate with a larger batch than training uses.

What it does: sets the batch size of evaluations only. Totals are summed over samples, so the loss and the metrics are
those of the whole validation set at any batch size.

Why it is faster: an evaluation stores no activations for a backward pass, so it has memory for a larger batch. Fewer,
larger operations use the device better.

When it loses: where the loader is the limit, or the training batch already uses the device fully. A batch that does not
fit is halved until it does, which costs time in the first evaluation.

What it changes: rounding of the evaluation results only ("equal up to rounding"). Training does not change.

Example:

    [[choice]]
    technique = "evaluation_batch"
    value = 512
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.batch_split import whole_batch
from hasten.techniques.common.plan_values import whole_number
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

_FACTORS = (2, 4, 8)


def applies(setup: Setup) -> Yes | No:
    if setup.job.valid is None:
        return No("the job has no valid data, so nothing is evaluated")
    if whole_batch(setup) is None:
        return No("the batch size is unknown; write Job.batch_size")
    return Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    size = whole_batch(setup)
    if size is None:
        return []
    return [
        Choice(technique="evaluation_batch", value=factor * size, preserves=Preserves.ROUNDING) for factor in _FACTORS
    ]


def apply(setup: Setup, choice: Choice) -> None:
    setup.evaluation.batch_size = whole_number(choice, "the number of samples in a batch")


TECHNIQUE = Technique(
    name="evaluation_batch",
    stage=Stage.EVALUATION,
    treats=Symptom.SLOW_EVALUATION,
    values="a whole number, 1 or more: the samples in one evaluation batch",
    costs=("more memory during evaluations",),
    source="https://docs.pytorch.org/docs/stable/notes/autograd.html#inference-mode",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
