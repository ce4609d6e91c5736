"""Start from another learning rate than the job's.

What it does: replaces the rate of the first parameter group before the schedule is built. It multiplies the rates of
all other groups, of all optimizers, by the same factor. A schedule that scales the optimizer's rate follows.

Why it is faster: rates are often far below the largest stable one. A larger rate reaches the same loss in fewer steps.

When it loses: above the stable range, where the loss jumps or stagnates.

What it changes: training ("changes training"). `hasten tune` tries it only with `--allow training`, and judges it by
the time to the target. It proposes twice and half the present rate. A range test of the learning rate suggests better
values.

Limits: OneCycleLR and CyclicLR have rates of their own, so this technique is refused with them. It is also refused
where the first group's rate is 0.

Example:

    [[choice]]
    technique = "learning_rate"
    value = 0.1
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim import Optimizer

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.job_optimizers import present_optimizers
from hasten.techniques.common.plan_values import is_number, refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

NEIGHBOURS = (2.0, 0.5)
LEAST_TOO_LARGE = 2.0**128  # for float32


def set_learning_rate(optimizers: Sequence[Optimizer], rate: float) -> None:
    """Give the first group this rate and keep the ratios of all groups to it, in place.

    Raises PlanError when the first group's rate is zero or missing, as no ratio to it exists then.
    """
    groups = [group for optimizer in optimizers for group in optimizer.param_groups]
    reason = _no_ratio(groups)
    if reason:
        raise PlanError(reason, where="learning_rate", fix="write the rate in Job.optimizer")
    first = float(groups[0]["lr"])
    for group in groups:
        scaled = rate * (float(group["lr"]) / first)
        # A new tensor, as torch lets groups share the one that holds their rate.
        group["lr"] = torch.full_like(group["lr"], scaled) if isinstance(group["lr"], Tensor) else scaled


def applies(setup: Setup) -> Yes | No:
    reason = _no_ratio([group for optimizer in present_optimizers(setup) for group in optimizer.param_groups])
    return No(reason) if reason else Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    present = float(present_optimizers(setup)[0].param_groups[0]["lr"])
    values = [present * factor for factor in NEIGHBOURS]
    return [Choice(technique="learning_rate", value=value, preserves=Preserves.TRAINING) for value in values]


def apply(setup: Setup, choice: Choice) -> None:
    rate = choice.value
    if not is_number(rate) or not 0 < rate < LEAST_TOO_LARGE:
        raise refused(choice, "write a number above 0 that float32 can hold, for example 0.1")
    setup.optimizer.learning_rate = float(rate)


def _no_ratio(groups: Sequence[dict[str, object]]) -> str | None:
    if any("lr" not in group for group in groups):
        return "a parameter group has no learning rate"
    if float(groups[0]["lr"]) == 0:  # pyright: ignore[reportArgumentType]
        return "the first parameter group's learning rate is 0, so the other rates cannot be scaled with it"
    return None


TECHNIQUE = Technique(
    name="learning_rate",
    stage=Stage.OPTIMIZER,
    treats=Symptom.SLOW_CONVERGENCE,
    values="a number above 0: the learning rate of the first parameter group",
    costs=("the final loss may differ",),
    source="https://arxiv.org/abs/1506.01186",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
