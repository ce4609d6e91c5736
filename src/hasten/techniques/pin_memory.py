"""Put batches into page-locked memory on their way to the device.

What it does: copies every batch into memory that the system may not move, and lets the copy from there to the device go
on while the host does something else.

Why it is faster: a device reads page-locked memory by itself. From any other, the driver first copies a batch piece by
piece into such memory, and the host waits for it.

When it loses: page-locked memory is taken from what the rest of the machine can use, and taking it is slow. Small
batches are copied in no time either way.

What it gave up: nothing. The same bytes arrive.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if setup.device.type == "cpu":
        return No("batches are used where they are read, and copied to no device")
    if setup.train is not None and setup.train.on_accelerator:
        return No("the training data is on the device already")
    return No("batches are in page-locked memory already") if setup.loader.pin_memory else Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="pin_memory", value=True, preserves=Preserves.BITS)]


def apply(setup: Setup, choice: Choice) -> None:
    if choice.value is not True or choice.options:
        raise PlanError(
            f"the plan asks for {choice}", where="pin_memory", fix="write true, without options, or leave it out"
        )
    setup.loader.pin_memory = True


TECHNIQUE = Technique(
    name="pin_memory",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values="true",
    costs=("page-locked memory for every batch on its way",),
    source="https://docs.pytorch.org/docs/stable/data.html#memory-pinning",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
