"""Limit the gradient before each update.

What it does: scales all gradients together so that their norm is at most the value. With the option `kind = "value"`,
it instead limits every element to the range from minus the value to the value. It replaces the job's own clipping.

Options: `kind`, "norm" (default) or "value". `norm_type`, the order of the norm: 2.0 (default), any other number above
0, or inf.

Why it is faster: it is not, per step. One steep gradient can move the weights too far, above all with a large learning
rate, in recurrent models, and in the first steps of a transformer. Clipping prevents that, so training may need fewer
steps.

When it loses: a value below the usual gradient norm acts as a smaller learning rate on every step. Adam's update hardly
depends on the scale of the gradient, so there it only dampens sudden jumps.

What it changes: training ("changes training"), in every clipped step. "value" also changes the direction of the
gradient.

Example:

    [[choice]]
    technique = "clipping"
    value = 1.0
    options = { kind = "norm", norm_type = 2.0 }
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import is_number, refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

USUAL_NORM = 1.0
_FIX = 'write a number above 0; as options kind = "norm" or "value", and with "norm" norm_type = a number above 0'


def applies(setup: Setup) -> Yes | No:
    return Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    """The usual norm, for a job that does not clip."""
    if setup.job.clip_norm is not None or setup.job.clip_value is not None:
        return []
    return [Choice(technique="clipping", value=USUAL_NORM, preserves=Preserves.TRAINING)]


def apply(setup: Setup, choice: Choice) -> None:
    bound, options = choice.value, dict(choice.options)
    kind, norm_type = options.pop("kind", "norm"), options.pop("norm_type", None)
    sensible = kind == "norm" or (kind == "value" and norm_type is None)
    if options or not sensible or not is_number(bound) or not 0 < bound < math.inf:
        raise refused(choice, _FIX)
    if norm_type is not None and not (is_number(norm_type) and norm_type > 0):
        raise refused(choice, _FIX)
    setup.step.clip_norm, setup.step.clip_value = (bound, None) if kind == "norm" else (None, bound)
    setup.step.clip_norm_type = 2.0 if norm_type is None else float(norm_type)


TECHNIQUE = Technique(
    name="clipping",
    stage=Stage.STEP,
    treats=Symptom.UNSTABLE_TRAINING,
    values='a number above 0; options: kind ("norm" or "value"), norm_type (a number above 0)',
    costs=("reads all gradients once more",),
    source="https://arxiv.org/abs/1211.5063",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
