"""Crop, resize and mirror images on the device, a batch at once.

What it does: loader workers only decode and crop. The crop of each image goes to the device as bytes, on a canvas as
large as the largest crop in the batch. There, two batched matrix products resize all of them.

Why it is faster: an accelerator resizes, mirrors and normalizes a whole batch at once, while the host decodes the next
one.

When it loses: where the loader already keeps up, there is no gain. The canvas is several times larger than the resized
image, so more bytes are copied, and the device does extra work.

What it changes: the numbers, but not the course of training ("same statistics"). The host rounds a resized image to
whole bytes and the device does not, so a pixel differs by up to one level of 255.

Limits: the training data must be a `hasten.ImageFolder`, and the job must run on an accelerator.

Example:

    [[choice]]
    technique = "device_transform"
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
    if setup.train is None or not setup.train.has_device_form:
        return No("the training data is not a hasten.ImageFolder")
    if setup.device.type == "cpu":
        return No("this job runs on the CPU, so there is no other device to resize images on")
    return Yes()


def apply(setup: Setup, choice: Choice) -> None:
    check_true(choice)
    setup.loader.device_transform = True


TECHNIQUE = Technique(
    name="device_transform",
    stage=Stage.DATA,
    treats=Symptom.SLOW_LOADING,
    values="true",
    costs=("a larger copy to the device, and device memory for the canvas",),
    source="https://docs.nvidia.com/deeplearning/dali/user-guide/docs/",
    applies=applies,
    candidates=proposing("device_transform", Preserves.STATISTICS, True),
    apply=apply,
)
