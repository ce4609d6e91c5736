"""Store images and convolution weights with channels as the innermost dimension.

What it does: converts the model's weights to torch.channels_last once, and every four-dimensional input batch when it
moves to the device. Values, shapes and state_dict keys do not change; only strides do.

Why it is faster: convolution libraries compute in this layout (cuDNN on tensor cores, oneDNN with AMX or AVX-512). With
the default layout they transpose before and after each convolution, or choose a slower kernel.

When it loses: in models with few or narrow convolutions; with operators that have no channels-last kernel, which
convert back and forth; and for some float32 convolutions on CPUs.

What it changes: rounding only ("equal up to rounding"), because another kernel adds the same products in another order.

Example:

    [[choice]]
    technique = "channels_last"
    value = true
"""

from __future__ import annotations

import torch
from torch import nn

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import check_true
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup


def to_channels_last(model: nn.Module) -> nn.Module:
    """The same module, its four-dimensional parameters and buffers laid out channels-last, in place."""
    return model.to(memory_format=torch.channels_last)  # pyright: ignore[reportCallIssue]


def applies(setup: Setup) -> Yes | No:
    convolutions = [each for each in setup.model.modules() if isinstance(each, nn.Conv2d | nn.ConvTranspose2d)]
    if not convolutions:
        return No("the model has no two-dimensional convolution")
    weights = [each.weight for each in convolutions]
    innermost = all(each.is_contiguous(memory_format=torch.channels_last) for each in weights)
    if innermost and not all(each.is_contiguous() for each in weights):  # of a kernel of one pixel both are true
        return No("the model is in channels-last already")
    return Yes()


def apply(setup: Setup, choice: Choice) -> None:
    check_true(choice)
    setup.model = to_channels_last(setup.model)
    setup.step.memory_format = torch.channels_last


TECHNIQUE = Technique(
    name="channels_last",
    stage=Stage.MODEL,
    treats=Symptom.SLOW_CONVOLUTION,
    values="true",
    costs=("copies the weights once at the start",),
    source="https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html",
    applies=applies,
    candidates=proposing("channels_last", Preserves.ROUNDING, True),
    apply=apply,
)
