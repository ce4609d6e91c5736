"""Copy batches into page-locked memory on their way to the device.

What it does: copies every batch into page-locked (pinned) memory. The copy from there to the device runs while the host
continues.

Why it is faster: a device reads page-locked memory by itself. From other memory the driver first copies a batch into
such memory piece by piece, and the host waits.

When it loses: page-locked memory is lost to the rest of the machine, and allocating it is slow. Small batches are
copied quickly either way.

What it gave up: nothing. The same bytes arrive.
"""

from __future__ import annotations

from hasten.techniques.common.plan_values import check_true
from hasten.techniques.contract import Choice, No, Preserves, Setup, Stage, Symptom, Technique, Yes, proposing


def applies(setup: Setup) -> Yes | No:
    if setup.device.type == "cpu":
        return No("batches are used on the processor, and copied to no device")
    if setup.train is not None and setup.train.on_accelerator:
        return No("the training data is on the device already")
    return No("batches are in page-locked memory already") if setup.loader.pin_memory else Yes()


def apply(setup: Setup, choice: Choice) -> None:
    check_true(choice)
    setup.loader.pin_memory = True


TECHNIQUE = Technique(
    name="pin_memory",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values="true",
    costs=("page-locked memory for every batch on its way",),
    source="https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
    applies=applies,
    candidates=proposing("pin_memory", Preserves.BITS, True),
    apply=apply,
)
