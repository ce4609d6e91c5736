"""Let the processor treat denormal numbers as zero.

What it does: sets the processor's flush-to-zero and denormals-are-zero modes through torch.set_flush_denormal. Numbers
with a magnitude below about 1e-38, for which float32 has fewer and fewer bits, become zero.

Why it is faster: processors compute normal numbers in hardware and denormal ones in microcode, which takes many times
as long. Denormal numbers appear where values decay: activations after saturated functions, momenta of weights that no
longer change, probabilities far from the target.

When it loses: never, but most jobs have no denormal numbers, and then there is nothing to gain.

What it gave up: numbers between zero and about 1e-38. The mode belongs to a thread, and compute threads inherit it when
they start, so it must be set before the first large operation of the process.
"""

from __future__ import annotations

from hasten.techniques.common.plan_values import check_true
from hasten.techniques.contract import Choice, No, Preserves, Setup, Stage, Symptom, Technique, Yes, proposing

_CAN_FLUSH = frozenset({"pni", "asimd"})  # as the kernel names SSE3 on x86, and every 64-bit ARM


def applies(setup: Setup) -> Yes | No:
    if setup.device.type != "cpu":
        return No(f"this job computes on {setup.device.type}, where denormal numbers cost nothing extra")
    # A system that lists no features is tried: torch reports when it cannot set the mode.
    if (found := setup.machine.processor_features) and not found & _CAN_FLUSH:
        return No("this processor has no SSE3 (x86) or Advanced SIMD (ARM), through which torch sets the mode")
    return Yes()


def apply(setup: Setup, choice: Choice) -> None:
    check_true(choice)
    setup.process.flush_denormals = True


TECHNIQUE = Technique(
    name="flush_denormals",
    stage=Stage.PROCESS,
    treats=Symptom.SLOW_MATRIX_PRODUCT,
    values="true",
    costs=("holds for the whole process, for other code in it too",),
    source="https://docs.pytorch.org/docs/stable/generated/torch.set_flush_denormal.html",
    applies=applies,
    candidates=proposing("flush_denormals", Preserves.ROUNDING, True),
    apply=apply,
)
