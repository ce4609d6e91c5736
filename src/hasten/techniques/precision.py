"""Compute in a lower precision where the device supports it.

What it does: sets the precision of matrix products and convolutions.

  * "bf16": runs the forward pass and the loss under torch.autocast in
    bfloat16. Sums, losses, weights, gradients and optimizer state stay in
    float32.
  * "fp16": the same in float16. It also scales the loss, because the range of
    float16 is too small for most gradients.
  * "tf32": all tensors stay in float32, and the device rounds the inputs of
    products and convolutions to eleven bits.
  * "fp32": the baseline. torch's defaults stay, so convolutions on CUDA still
    use TF32.

Why it is faster: dedicated units compute many products of lower precision in the time of one float32 product, and half
as many bytes move.

When it loses: in models of small or memory-bound operations, where casting costs more than the products save; and on
CPUs that emulate the dtype.

What it changes: the numbers, but not the course of training ("same statistics"). bf16 has the range of float32 and 8
bits of precision. fp16 has 11 bits and a smaller range, so a step whose gradients overflow is skipped. tf32 has the
range of float32 and 11 bits.

Limits: on CUDA, bf16 and tf32 need compute capability 8.0, and fp16 needs 7.0. CPUs support only bf16. fp16 is not
possible together with `pipeline` or `tensor`.

Example:

    [[choice]]
    technique = "precision"
    value = "bf16"
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

LOWER = ("bf16", "fp16", "tf32")  # the most promising first
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}
_CUDA_SINCE = {"bf16": (8, 0), "fp16": (7, 0), "tf32": (8, 0)}  # with dedicated units, so not emulated
_BF16_INSTRUCTIONS = frozenset({"avx512_bf16", "amx_bf16", "bf16", "svebf16"})  # the last two are ARM's


def supported(value: str, device: str, machine: Machine) -> Yes | No:
    """Whether the device itself computes in a precision. value: one of LOWER or "fp32"; device: a torch device type."""
    if value == "fp32":
        return Yes()
    if device == "cuda":
        return _on_cuda(value, machine.compute_capability)
    if device == "cpu":
        return _on_processor(value, machine.processor_features)
    return No(f"{value} was checked on cuda and cpu only; this job runs on {device}")


def _on_cuda(value: str, capability: tuple[int, int] | None) -> Yes | No:
    needed = _CUDA_SINCE[value]
    if capability is None:
        return No(f"{value} depends on the compute capability of the GPU, which is unknown")
    if capability < needed:
        major, minor = capability
        return No(f"{value} needs compute capability {needed[0]}.{needed[1]}; this GPU has {major}.{minor}")
    return Yes()


def _on_processor(value: str, features: frozenset[str]) -> Yes | No:
    if value == "tf32":
        return No("tf32 needs CUDA; this job runs on a CPU")
    if value == "fp16":
        return No("fp16 on a CPU can take minutes a step: most of its kernels are emulated")
    if not features & _BF16_INSTRUCTIONS:
        return No("this CPU has no bf16 instructions (avx512_bf16, amx_bf16 or ARM's bf16) and emulates them")
    return Yes()


def applies(setup: Setup) -> Yes | No:
    if {each.dtype for each in setup.model.parameters()} == {torch.float64}:
        return No("the model is in float64, which autocast does not lower")
    verdicts = [supported(value, setup.device.type, setup.machine) for value in LOWER]
    refusals = [verdict.reason for verdict in verdicts if isinstance(verdict, No)]
    return Yes() if len(refusals) < len(verdicts) else No("; ".join(refusals))


def candidates(setup: Setup) -> Sequence[Choice]:
    return [
        Choice(technique="precision", value=value, preserves=Preserves.STATISTICS)
        for value in LOWER
        if isinstance(supported(value, setup.device.type, setup.machine), Yes)
    ]


def apply(setup: Setup, choice: Choice) -> None:
    value = choice.value
    if not isinstance(value, str) or value not in ("fp32", *LOWER) or choice.options:
        raise refused(choice, 'write "bf16", "fp16", "tf32" or "fp32", without options')
    verdict = supported(value, setup.device.type, setup.machine)
    if isinstance(verdict, No):
        _refuse_or_notice(setup, value, verdict.reason)
    if value == "tf32":
        setup.process.float32_matmul, setup.process.cudnn_tf32 = "high", True
    setup.step.autocast = _AUTOCAST.get(value)
    setup.step.scale_gradients = value == "fp16"


def _refuse_or_notice(setup: Setup, value: str, reason: str) -> None:
    device = setup.device.type
    if value == "bf16" and device == "cpu":
        # An emulated product has the same bits, so a plan that was proven elsewhere still trains the same here.
        setup.notices.append(f"precision = bf16 is slow here: {reason}")
        return
    instead = next(other for other in (*LOWER, "fp32") if isinstance(supported(other, device, setup.machine), Yes))
    raise PlanError(reason, where="precision", fix=f'write "{instead}"')


TECHNIQUE = Technique(
    name="precision",
    stage=Stage.STEP,
    treats=Symptom.SLOW_MATRIX_PRODUCT,
    values='"bf16", "fp16", "tf32" or "fp32"',
    costs=("casts weights and inputs in every forward pass", "fp16 skips the steps whose gradients overflow"),
    source="https://docs.pytorch.org/docs/stable/amp.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
