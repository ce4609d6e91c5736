"""Copy the next batches to the device while the present one computes.

What it does: puts up to the given number of batches on the device ahead of their use, by a stream of their own. The
stream that computes waits for the copy that it is about to use, and the host for none.

Why it is faster: without it, a batch is copied when it is asked for, and the device computes nothing meanwhile. Copies
and computation use different parts of the device and can run at the same time, if the batch lies in pinned memory.

When it loses: each batch ahead takes its size of device memory. Where copying takes little of the step, or the memory
is not pinned and the host waits anyway, nothing is won.

What it gave up: nothing. The same batches are used in the same order.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

MOST = 16  # batches; more would only take device memory


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if setup.device.type != "cuda":
        return No(f"batches are used on {setup.device.type}, where there is no stream to copy on")
    if setup.train is not None and setup.train.on_accelerator:
        return No("the training data is on the device already")
    why = None if setup.train is None else setup.train.why_not_ahead
    return Yes() if why is None else No(why)


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="device_prefetch", value=ahead, preserves=Preserves.BITS) for ahead in (1, 2)]


def apply(setup: Setup, choice: Choice) -> None:
    ahead = choice.value
    if not isinstance(ahead, int) or isinstance(ahead, bool) or not 1 <= ahead <= MOST or choice.options:
        raise PlanError(
            f"the plan asks for {choice}",
            where="device_prefetch",
            fix=f"write how many batches to copy ahead, 1 to {MOST}, without options",
        )
    if setup.train is not None and setup.train.why_not_ahead is not None:
        what = f"{setup.train.why_not_ahead}; batches that are copied ahead would use older weights"
        raise PlanError(what, where="device_prefetch", fix="leave device_prefetch out")
    if setup.device.type == "cuda":
        setup.loader.device_prefetch = ahead


TECHNIQUE = Technique(
    name="device_prefetch",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values=f"how many batches to copy ahead: a whole number, 1 to {MOST}",
    costs=("device memory for each batch ahead",),
    source="https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
