"""Choose how many CPU threads share one operation.

What it does: calls torch.set_num_threads, which sets the number of threads that split a large operation. Loader workers
need cores too, so the first count tried is the number of cores that they leave free.

Why it is faster: with more threads than free cores, threads wait for each other at the end of every operation. For
small operations, waking and joining threads takes longer than the work, and one thread is best.

When it loses: with too few threads, large operations leave cores idle.

What it gave up: nothing but rounding. A sum that is split into another number of parts is added in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hasten.data.loading.loader_options import cores_of
from hasten.techniques.common.plan_values import refused, whole_number
from hasten.techniques.contract import Choice, No, Preserves, Setup, Stage, Symptom, Technique, Yes

MOST_A_CORE = 16  # more can only be a mistake; some thousands crash the process


def thread_counts(cores: int, workers: int) -> list[int]:
    """Counts to try, largest first: the cores that loader workers leave free, then half of that, and so on."""
    free = max(1, cores - workers)
    return [free >> halvings for halvings in range(free.bit_length())]


def applies(setup: Setup) -> Yes | No:
    if setup.device.type != "cpu":
        return No(f"this job computes on {setup.device.type}, not on threads of the processor")
    if not candidates(setup):
        return No("this process may use one core, and has one thread already")
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
    values="how many compute threads: a whole number, 1 or more",
    costs=("takes cores from the loader workers, or leaves cores idle",),
    source="https://docs.pytorch.org/docs/stable/notes/cpu_threading_torchscript_inference.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
