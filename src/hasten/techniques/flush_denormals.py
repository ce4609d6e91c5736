"""Let the processor take numbers next to zero for zero.

What it does: sets the processor's flush-to-zero and denormals-are-zero modes through torch.set_flush_denormal. Numbers
smaller than about 1e-38 in magnitude, which float32 can only hold with fewer and fewer bits, become zero.

Why it is faster: processors compute with normal numbers in hardware and hand denormal ones to microcode, which takes
many times as long for one operation. They appear where values decay: activations behind saturated functions, momenta of
weights that no longer move, probabilities far from the target.

When it loses: never by computing, but most jobs have no denormal numbers, and then there is nothing to win.

What it gave up: numbers between zero and about 1e-38. The mode belongs to a thread, and compute threads take it over
when they start, so it has to be set before the first large operation of the process.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

_CAN_FLUSH = frozenset({"pni", "asimd"})  # as the kernel names SSE3 on x86, and every 64-bit ARM


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if setup.device.type != "cpu":
        return No(f"this job computes on {setup.device.type}, where denormal numbers cost nothing extra")
    # A system that names no features at all is tried: torch says itself when it cannot set the mode.
    if machine.processor_features and not machine.processor_features & _CAN_FLUSH:
        return No("this processor has no SSE3 (x86) or Advanced SIMD (ARM), through which torch sets the mode")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="flush_denormals", value=True, preserves=Preserves.ROUNDING)]


def apply(setup: Setup, choice: Choice) -> None:
    if choice.value is not True or choice.options:
        raise PlanError(
            f"the plan asks for {choice}",
            where="flush_denormals",
            fix="write true without options, or leave the choice out",
        )
    setup.process.flush_denormals = True


TECHNIQUE = Technique(
    name="flush_denormals",
    stage=Stage.PROCESS,
    treats=Symptom.SLOW_MATRIX_PRODUCT,
    values="true",
    costs=("holds for the whole process, for other code in it too",),
    source="https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
