"""Crop, resize and mirror pictures on the device, a batch at once, from the bytes that were decoded.

What it does: loader workers only decode; what a crop shows goes to the device as it is, on a canvas as large as the
largest of the batch, and two batched matrix products there bring all of them to their size.

Why it is faster: the host decodes and cuts out, and resizing, mirroring and normalising are left to the device.
An accelerator resizes a whole batch at once, while the host decodes the next one.

When it loses: the canvas is several times larger than what is shown of it, so more is copied; and the device does work
that it did not do before. Where the loader keeps up anyway, nothing is won.

What it gave up: the host rounds the resized picture to whole bytes, the device does not. A pixel differs by up to one
level of 255.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if setup.train is None or not setup.train.has_device_form:
        return No("the training data is no hasten.ImageFolder")
    if setup.device.type == "cpu":
        return No("the device is the processor itself, which resizes pictures best while they are in its cache")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="device_transform", value=True, preserves=Preserves.STATISTICS)]


def apply(setup: Setup, choice: Choice) -> None:
    if choice.value is not True or choice.options:
        raise PlanError(
            f"the plan asks for {choice}",
            where="device_transform",
            fix="write true without options, or leave the choice out",
        )
    setup.loader.device_transform = True


TECHNIQUE = Technique(
    name="device_transform",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values="true",
    costs=("a larger copy to the device, and device memory for the canvas",),
    source="https://docs.nvidia.com/deeplearning/dali/user-guide/docs/",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
