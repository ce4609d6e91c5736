"""Choose how many CPU threads share one operation.

What it does: calls torch.set_num_threads. Loader workers need cores too, so `hasten tune` first tries the number of
cores that they leave free.

Why it is faster: with more threads than free cores, threads wait for each other at the end of every operation. For
small operations, waking and joining threads takes longer than the work, and one thread is best.

When it loses: with too few threads, large operations leave cores idle.

What it changes: rounding only ("equal up to rounding"). A sum that is split into another number of parts is added in
another order.

Limits: the job must run on the CPU.

Example:

    [[choice]]
    technique = "threads"
    value = 2
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hasten.data.loading.loader_options import cores_of
from hasten.facts.choice import Choice, Preserves
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.plan_values import refused, whole_number
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

MOST_A_CORE = 16  # more can only be a mistake; some thousands crash the process


def thread_counts(cores: int, workers: int) -> list[int]:
    """Counts to try, largest first: the cores that loader workers leave free, then half of that, and so on."""
    free = max(1, cores - workers)
    return [free >> halvings for halvings in range(free.bit_length())]


def applies(setup: Setup) -> Yes | No:
    if setup.device.type != "cpu":
        return No(f"this job runs on {setup.device.type}, not on CPU threads")
    if not candidates(setup):
        return No("this process may use only one core, and already computes with one thread")
    return Yes()


def candidates(setup: Setup) -> Sequence[Choice]:
    present = setup.process.threads or torch.get_num_threads()
    return [
        Choice(technique="threads", value=count, preserves=Preserves.ROUNDING)
        for count in thread_counts(cores_of(setup.machine), setup.loader.workers)
        if count != present
    ]


def apply(setup: Setup, choice: Choice) -> None:
    count = whole_number(choice, "the number of compute threads")
    if count > MOST_A_CORE * setup.machine.cores:
        raise refused(choice, f"write {setup.machine.cores}, the number of cores here, or remove the choice")
    if count > setup.machine.cores:
        setup.notices.append(f"{count} compute threads take turns on {setup.machine.cores} cores; fewer may be faster")
    setup.process.threads = count


TECHNIQUE = Technique(
    name="threads",
    stage=Stage.PROCESS,
    treats=Symptom.MANY_SMALL_OPERATIONS,
    values="a whole number, 1 or more: the compute threads",
    costs=("too many take cores from loader workers; too few leave cores idle",),
    source="https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
