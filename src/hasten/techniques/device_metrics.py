"""Keep losses on the device until several log lines are due, and read them at once.

What it does: sets the number of steps between two reads of device metrics by the host. Every log line of the job is
still written with the same numbers, up to that many steps later.

Why it is faster: to read a number, the host waits until the device has finished everything before it. Meanwhile the
host queues no work, so the device idles afterwards. A CPU has no such wait; there it saves formatting and writing
between steps.

When it loses: never in speed. With a long log interval there is nothing to gain.

What it changes: nothing ("bit-exact"). A bad loss is seen later, and a killed run loses the log lines not yet read.

Example:

    [[choice]]
    technique = "device_metrics"
    value = 50
"""

from __future__ import annotations

from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import whole_number
from hasten.techniques.contract import No, Technique, Yes, proposing
from hasten.techniques.setup import Setup

SELDOM = 50  # steps; reads this rare no longer show in the time of a step


def applies(setup: Setup) -> Yes | No:
    if setup.job.log_every >= SELDOM:
        return No(f"the job logs every {setup.job.log_every} steps, so the host rarely waits for the device")
    return Yes()


def apply(setup: Setup, choice: Choice) -> None:
    setup.step.read_every = whole_number(choice, "the number of steps between two reads")


TECHNIQUE = Technique(
    name="device_metrics",
    stage=Stage.STEP,
    treats=Symptom.DEVICE_IDLE,
    values="a whole number, 1 or more: the steps between two reads by the host",
    costs=("log lines appear later",),
    source="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    applies=applies,
    candidates=proposing("device_metrics", Preserves.BITS, SELDOM),
    apply=apply,
)
