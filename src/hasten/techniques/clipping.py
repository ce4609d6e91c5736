"""Limit the gradient before each update.

What it does: kind "norm" scales all gradients together so that their norm is at most the value. Kind "value" limits
every element to the range from minus the value to the value. It replaces the job's own clipping.

Why it is faster: it is not, per step. It keeps a larger learning rate, a recurrent model or the first steps of a
transformer stable where one steep gradient would move the weights too far. So training may need fewer steps.

When it loses: below the usual norm of the gradient it acts as a smaller learning rate on every step. Adam's update
hardly depends on the gradient's scale, so there it only dampens sudden jumps. The norm reads all gradients once more.

What it gave up: clipped steps differ; "value" also changes their direction.

Options: kind = "norm" (default) or "value"; norm_type = 2.0 (default), any other power above 0, or inf.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.formatting import did_you_mean
from hasten.facts.machine import Machine
from hasten.techniques.common.plan_values import is_number
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

OPTIONS = ("kind", "norm_type")
USUAL_NORM = 1.0


def applies(setup: Setup, machine: Machine) -> Yes | No:
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    """The usual norm, for a job that does not clip."""
    if setup.job.clip_norm is not None or setup.job.clip_value is not None:
        return []
    return [Choice(technique="clipping", value=USUAL_NORM, preserves=Preserves.TRAINING)]


def apply(setup: Setup, choice: Choice) -> None:
    bound = _positive(choice.value, "the bound")
    if not math.isfinite(bound):
        raise PlanError("the bound is infinite, which clips nothing", where="clipping", fix="remove the choice")
    for name in choice.options:
        if name not in OPTIONS:
            raise PlanError(f'has no option "{name}"', where="clipping", fix=did_you_mean(name, OPTIONS))
    kind = choice.options.get("kind", "norm")
    if kind == "norm":
        setup.step.clip_norm, setup.step.clip_value = bound, None
        setup.step.clip_norm_type = _positive(choice.options.get("norm_type", 2.0), "norm_type")
    elif kind == "value" and "norm_type" not in choice.options:
        setup.step.clip_norm, setup.step.clip_value = None, bound
    elif kind == "value":
        raise PlanError('norm_type has no meaning with kind = "value"', where="clipping", fix="remove norm_type")
    else:
        raise PlanError(f"kind is {kind!r}", where="clipping", fix='write "norm" or "value"')


def _positive(value: Value, what: str) -> float:
    if not is_number(value) or not value > 0:
        raise PlanError(f"{what} is {value!r}", where="clipping", fix="write a number above 0, such as 1.0")
    return float(value)


TECHNIQUE = Technique(
    name="clipping",
    stage=Stage.STEP,
    treats=Symptom.UNSTABLE_TRAINING,
    values='the bound, a number above 0; options: kind ("norm" or "value") and norm_type',
    costs=("reads all gradients once more",),
    source="https://arxiv.org/abs/1211.5063",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
