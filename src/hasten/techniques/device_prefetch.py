"""Copy the next batches to the device while it computes the current one.

What it does: copies up to the given number of batches ahead, on a CUDA stream of their own. The compute stream waits
only for the copy that it is about to use, and the host waits for none.

Why it is faster: otherwise a batch is copied when it is needed, and the device idles meanwhile. A device can copy and
compute at the same time if the batch is in pinned memory.

When it loses: where the copy is a small part of the step, or the memory is not pinned and the host waits anyway, there
is no gain. Each batch ahead takes device memory.

What it changes: nothing ("bit-exact"). The same batches are used in the same order.

Limits: it needs CUDA. It is refused for training data that already is on the device, and for data that reads the model
in training.

Example:

    [[choice]]
    technique = "device_prefetch"
    value = 2
"""

from __future__ import annotations

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import whole_number
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup

MOST = 16  # batches; more would only take device memory


def applies(setup: Setup) -> Yes | No:
    if setup.device.type != "cuda":
        return No(f"copying ahead needs CUDA; this job runs on {setup.device.type}")
    if setup.train is not None and setup.train.on_accelerator:
        return No("the training data is on the device already")
    why = None if setup.train is None else setup.train.why_not_ahead
    return Yes() if why is None else No(why)


def apply(setup: Setup, choice: Choice) -> None:
    ahead = whole_number(choice, "how many batches to copy ahead", most=MOST)
    if setup.train is not None and setup.train.why_not_ahead is not None:
        what = f"{setup.train.why_not_ahead}; batches that are copied ahead would use older weights"
        raise PlanError(what, where="device_prefetch", fix="remove device_prefetch")
    if setup.device.type == "cuda":
        setup.loader.device_prefetch = ahead


TECHNIQUE = Technique(
    name="device_prefetch",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values=f"a whole number, 1 to {MOST}: the batches to copy ahead",
    costs=("device memory for each batch ahead",),
    source="https://docs.pytorch.org/docs/stable/notes/cuda.html#use-pinned-memory-buffers",
    applies=applies,
    candidates=proposing("device_prefetch", Preserves.BITS, 1, 2),
    apply=apply,
)
