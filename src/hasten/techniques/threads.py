"""Choose how many threads share one operation on a processor.

What it does: sets torch.set_num_threads, the number of compute threads into which a large operation is split. The cores
are also wanted by loader workers, so the counts that are tried start at what the workers leave free.

Why it is faster: with more threads than free cores, threads wait for each other at the end of every operation. With
small operations, waking and joining threads takes longer than the work itself, and one thread is best.

When it loses: large operations with too few threads leave cores idle.

What it gave up: nothing but rounding. A sum split into another number of parts is added in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hasten.data.loading.limits import cores_of
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

MOST_A_CORE = 16  # more can only be a slip; from some thousands on, starting them ends the process


def thread_counts(cores: int, workers: int) -> list[int]:
    """Counts worth trying, largest first: the cores that loader workers leave free, then each half of that."""
    free = max(1, cores - workers)
    return [free >> halvings for halvings in range(free.bit_length())]


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if setup.device.type != "cpu":
        return No(f"this job computes on {setup.device.type}, not on threads of the processor")
    if not candidates(setup, machine):
        return No("the only core that this process may use already has the only thread")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    present = setup.process.threads or torch.get_num_threads()
    return [
        Choice(technique="threads", value=count, preserves=Preserves.ROUNDING)
        for count in thread_counts(cores_of(machine), setup.loader.workers)
        if count != present
    ]


def apply(setup: Setup, choice: Choice) -> None:
    count = choice.value
    if not isinstance(count, int) or isinstance(count, bool) or count < 1 or choice.options:
        raise PlanError(
            f"the plan asks for {choice}", where="threads", fix="write a whole number of 1 or more, without options"
        )
    if count > MOST_A_CORE * setup.machine.cores:
        raise PlanError(
            f"{count} compute threads are more than {MOST_A_CORE} for each of the {setup.machine.cores} cores here",
            where="threads",
            fix=f"write {setup.machine.cores}, or leave the choice out",
        )
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
