"""Let cuDNN time its convolution algorithms and keep the fastest for each shape.

What it does: sets torch.backends.cudnn.benchmark. The first time a convolution meets a new combination of shapes, types
and layout, cuDNN runs every algorithm that it has for it and remembers the winner; without it, a heuristic chooses.

Why it is faster: the heuristic guesses from the shapes alone. The search looks at this card, with what it has to do.

When it loses: shapes that change. Every new one is searched again, and a job whose images differ in size never stops
searching; there the heuristic is better. A last batch that is smaller than the others costs one more search per
convolution. A short run may end before the search has paid for itself.

What it gave up: reproducibility of the last bits. Two algorithms add the same products in another order, and two runs
may choose two algorithms. Some algorithms also ask for more workspace memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

_CONVOLUTIONS = (
    *(nn.Conv1d, nn.Conv2d, nn.Conv3d),
    *(nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d),
)


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if setup.device.type != "cuda":
        return No(f"cuDNN runs on CUDA devices; this job runs on {setup.device.type}")
    if not any(isinstance(module, _CONVOLUTIONS) for module in setup.model.modules()):
        return No("the model has no convolution")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="cudnn_autotune", value=True, preserves=Preserves.ROUNDING)]


def apply(setup: Setup, choice: Choice) -> None:
    if choice.value is not True or choice.options:
        raise PlanError(
            f"the plan asks for {choice}",
            where="cudnn_autotune",
            fix="write true without options, or leave the choice out",
        )
    setup.process.cudnn_benchmark = True


TECHNIQUE = Technique(
    name="cudnn_autotune",
    stage=Stage.PROCESS,
    treats=Symptom.SLOW_CONVOLUTION,
    values="true",
    costs=("runs every algorithm once for each new shape, at the start", "may use more workspace memory"),
    source="https://docs.pytorch.org/docs/stable/backends.html#torch.backends.cudnn.torch.backends.cudnn.benchmark",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
