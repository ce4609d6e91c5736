"""Let cuDNN measure its convolution algorithms and use the fastest for each shape.

What it does: sets torch.backends.cudnn.benchmark. When a convolution first meets a combination of shapes, dtypes and
layout, cuDNN runs all its algorithms and remembers the fastest. Without it, a heuristic chooses.

Why it is faster: the heuristic knows only the shapes. The measurement runs on this GPU.

When it loses: with changing shapes, because every new shape is measured again. A smaller last batch costs one more
measurement for each convolution. A short run may end before the measurements have paid off.

What it changes: rounding only ("equal up to rounding"). Two algorithms add the same products in another order, and two
runs may choose two algorithms, so runs are not reproducible to the last bit.

Limits: it needs CUDA and a model with convolutions.

Example:

    [[choice]]
    technique = "cudnn_autotune"
    value = true
"""

from __future__ import annotations

from torch import nn

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import check_true
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup

_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


def applies(setup: Setup) -> Yes | No:
    if setup.device.type != "cuda":
        return No(f"cuDNN runs on CUDA devices; this job runs on {setup.device.type}")
    if not any(isinstance(module, _CONVOLUTIONS) for module in setup.model.modules()):
        return No("the model has no convolution")
    return Yes()


def apply(setup: Setup, choice: Choice) -> None:
    check_true(choice)
    setup.process.cudnn_benchmark = True


TECHNIQUE = Technique(
    name="cudnn_autotune",
    stage=Stage.PROCESS,
    treats=Symptom.SLOW_CONVOLUTION,
    values="true",
    costs=("runs every algorithm once for each new shape, at the start", "may use more workspace memory"),
    source="https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark",
    applies=applies,
    candidates=proposing("cudnn_autotune", Preserves.ROUNDING, True),
    apply=apply,
)
