"""Let torch.compile turn the model into fused code for this machine.

What it does: the first step traces the model and generates code, C++ on a CPU and Triton on CUDA. Later steps run that
code while the shapes stay the same. The model's class, module names and state_dict keys do not change. The value is
torch's `mode`.

  * "default": fuses operations.
  * "reduce-overhead": also records CUDA graphs, which launch all kernels of a
    step at once. CUDA only.
  * "max-autotune": also records CUDA graphs, and measures several kernels for
    each product and convolution. On a CPU it is allowed but not proposed,
    because tuned products need constant weights.

Options: `dynamic`, true or false, as in torch.compile.

Why it is faster: neighbouring element-wise operations and reductions become one kernel. So values stay in registers
instead of going through memory, and Python no longer runs between operations.

When it loses: where a few large products take all the time, where the run is shorter than the compilation, and where
shapes change all the time. A batch of a new size compiles again, once or twice, until torch makes the size a variable.

What it changes: rounding only ("equal up to rounding"), because sums are grouped differently.

Limits: a CPU needs a C++ compiler; CUDA needs Triton and compute capability 7.0. A plan cannot combine it with `shard`,
`tensor` or `pipeline`.

Example:

    [[choice]]
    technique = "compile"
    value = "default"
    options = { dynamic = true }
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import sys
from collections.abc import Sequence
from typing import Literal, cast

import torch

from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import CompileOptions, Setup

MODES = ("default", "reduce-overhead", "max-autotune")
_TRITON_SINCE = (7, 0)  # compute capability


def applies(setup: Setup) -> Yes | No:
    if isinstance(setup.model, torch.jit.ScriptModule):
        return No("the model is compiled by TorchScript, which torch.compile cannot compile again")
    if setup.device.type == "cpu":
        return _for_processors()
    if setup.device.type == "cuda":
        return _for_cuda(setup.machine)
    return No(f"compiled training was checked on cuda and cpu only; this job runs on {setup.device.type}")


def _for_processors() -> Yes | No:
    # torch uses only this program.
    compiler = os.environ.get("CXX", "clang++" if sys.platform == "darwin" else "g++")
    if shutil.which(compiler):
        return Yes()
    return No(f"compiling for the CPU needs a C++ compiler, and {compiler} is not on the PATH")


def _for_cuda(machine: Machine) -> Yes | No:
    if importlib.util.find_spec("triton") is None:
        return No("compiling for CUDA needs Triton, which is not installed")
    if (capability := machine.compute_capability) is None or capability < _TRITON_SINCE:
        found = ".".join(map(str, capability)) if capability else "an unknown one"
        return No(f"Triton needs compute capability 7.0; this GPU has {found}")
    return Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    modes = MODES if setup.device.type == "cuda" else ("default",)
    return [Choice(technique="compile", value=mode, preserves=Preserves.ROUNDING) for mode in modes]


def apply(setup: Setup, choice: Choice) -> None:
    dynamic = choice.options.get("dynamic")
    if choice.value not in MODES or choice.options.keys() - {"dynamic"} or not isinstance(dynamic, bool | None):
        raise refused(choice, f"write one of: {', '.join(MODES)}; the one option is dynamic, true or false")
    if choice.value == "reduce-overhead" and setup.device.type != "cuda":
        raise refused(choice, f"write default: it records CUDA graphs, and this job runs on {setup.device.type}")
    answer = applies(setup)
    if isinstance(answer, No):
        raise refused(choice, f"remove compile from the plan: {answer.reason}")
    mode = cast(Literal["default", "reduce-overhead", "max-autotune"], choice.value)
    setup.compile = CompileOptions(mode=mode, dynamic=dynamic)


TECHNIQUE = Technique(
    name="compile",
    stage=Stage.MODEL,
    treats=Symptom.MANY_SMALL_OPERATIONS,
    values='"default", "max-autotune" or, on CUDA, "reduce-overhead"; options: dynamic (true or false)',
    costs=("seconds to minutes of compilation at the first step, and again for new shapes",),
    source="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
