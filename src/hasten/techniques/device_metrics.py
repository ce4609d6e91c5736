"""Leave the loss of every step on the device until several lines of metrics are due, and read them at once.

What it does: sets how many steps lie between two reads of device metrics by the host. Every line of metrics that the
job asks for is still written, with the same numbers, only later: up to that many steps after its own.

Why it is faster: reading one number makes the host wait until the device has finished everything before it. Meanwhile
the host prepares no further work, and the device idles afterwards. On a processor there is no such wait, and what is
saved is the formatting and writing between steps.

When it loses: never in speed. With a log interval that is long already there is nothing to win.

What it gave up: promptness. A loss that has gone wrong is seen that many steps later, and a run that is killed loses
the lines that were not yet read.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

SELDOM = 50  # steps; a read that far apart no longer shows in the time of a step


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if setup.job.log_every >= SELDOM:
        return No(f"the job logs every {setup.job.log_every} steps, so the device is read seldom already")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="device_metrics", value=SELDOM, preserves=Preserves.BITS)]


def apply(setup: Setup, choice: Choice) -> None:
    steps = choice.value
    if not isinstance(steps, int) or isinstance(steps, bool) or steps < 1 or choice.options:
        raise PlanError(
            f"the plan asks for {choice}",
            where="device_metrics",
            fix="write a whole number of steps, 1 or more, without options",
        )
    setup.step.read_every = steps


TECHNIQUE = Technique(
    name="device_metrics",
    stage=Stage.STEP,
    treats=Symptom.DEVICE_IDLE,
    values="steps between two reads by the host: a whole number, 1 or more",
    costs=("lines of metrics appear later",),
    source="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
