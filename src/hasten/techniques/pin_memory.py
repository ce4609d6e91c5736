"""Copy batches into page-locked memory on their way to the device.

What it does: copies every batch into page-locked (pinned) memory. The copy from there to the device runs while the host
continues.

Why it is faster: a device reads page-locked memory directly. From other memory, the driver first copies a batch into
page-locked memory piece by piece, and the host waits.

When it loses: other programs cannot use page-locked memory, and allocating it is slow. Small batches are copied quickly
either way.

What it changes: nothing ("bit-exact"). The same bytes arrive.

Limits: it needs an accelerator, and training data that is not on it already.

Example:

    [[choice]]
    technique = "pin_memory"
    value = true
"""

from __future__ import annotations

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import check_true
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup


def applies(setup: Setup) -> Yes | No:
    if setup.device.type == "cpu":
        return No("this job runs on the CPU, so batches are not copied to a device")
    if setup.train is not None and setup.train.on_accelerator:
        return No("the training data is on the device already")
    return No("pin_memory is already on") if setup.loader.pin_memory else Yes()


def apply(setup: Setup, choice: Choice) -> None:
    check_true(choice)
    setup.loader.pin_memory = True


TECHNIQUE = Technique(
    name="pin_memory",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values="true",
    costs=("page-locked memory for every batch in transfer",),
    source="https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
    applies=applies,
    candidates=proposing("pin_memory", Preserves.BITS, True),
    apply=apply,
)
