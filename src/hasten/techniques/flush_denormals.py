"""Let the CPU treat denormal numbers as zero.

What it does: calls torch.set_flush_denormal. The CPU then treats numbers with a magnitude below about 1e-38 as zero, in
inputs and in results. float32 stores such numbers with fewer bits.

Why it is faster: many CPUs compute denormal numbers in microcode, which takes many times as long. Denormal numbers
appear where values decay: activations after saturated functions, momenta of weights that no longer change,
probabilities far from the target.

When it loses: never. Most jobs have no denormal numbers, and then there is nothing to gain.

What it changes: rounding only ("equal up to rounding"): numbers between zero and about 1e-38 become zero.

Limits: an x86 CPU needs SSE3, and an ARM CPU Advanced SIMD. The mode belongs to a thread, and compute threads inherit
it when they start, so hasten sets it before the first large operation.

Example:

    [[choice]]
    technique = "flush_denormals"
    value = true
"""

from __future__ import annotations

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import check_true
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup

_CAN_FLUSH = frozenset({"pni", "asimd"})  # as the kernel names SSE3 on x86, and every 64-bit ARM


def applies(setup: Setup) -> Yes | No:
    if setup.device.type != "cpu":
        return No(f"this job runs on {setup.device.type}, where denormal numbers are not slower")
    # A system that lists no features is tried: torch reports when it cannot set the mode.
    if (found := setup.machine.processor_features) and not found & _CAN_FLUSH:
        return No("this CPU has neither SSE3 (x86) nor Advanced SIMD (ARM), which torch needs to set the mode")
    return Yes()


def apply(setup: Setup, choice: Choice) -> None:
    check_true(choice)
    setup.process.flush_denormals = True


TECHNIQUE = Technique(
    name="flush_denormals",
    stage=Stage.PROCESS,
    treats=Symptom.SLOW_MATRIX_PRODUCT,
    values="true",
    costs=("applies to the whole process, also to other code in it",),
    source="https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html",
    applies=applies,
    candidates=proposing("flush_denormals", Preserves.ROUNDING, True),
    apply=apply,
)
