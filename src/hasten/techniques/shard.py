"""Hold each parameter, gradient and optimizer state in parts, one on each process.

What it does: divides parameters, gradients and optimizer state over the processes of a run (torch's fully_shard). A
layer that the model repeats is gathered when it computes. "zero3" gives it free behind its forward pass and gathers it
again for its backward pass; "zero2" keeps it in between. On one process nothing is shared.

Why it is faster: it is not; it makes room. Where a model does not fit beside its optimizer's state, or only with a tiny
batch, each process of N holds about one N-th of both, and the room is worth a larger batch.

When it loses: where all fits anyway. Parameters then travel in every step, once or twice, that would stay where they
are.

What it gave up: nothing but rounding. Gradients are summed over the processes in another order.
"""

from __future__ import annotations

from collections.abc import Sequence

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup, ShardOptions

_VALUES = ("zero3", "zero2")  # the one that makes the most room first


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if not setup.ranks.many:
        return No("one process has nobody to share with; hasten train --nproc starts several")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="shard", value=value, preserves=Preserves.ROUNDING) for value in _VALUES]


def apply(setup: Setup, choice: Choice) -> None:
    if choice.value not in _VALUES or choice.options:
        raise PlanError(f"the plan asks for {choice}", where="shard", fix='write "zero2" or "zero3", without options')
    setup.shard = ShardOptions(keeps_gathered=choice.value == "zero2")


TECHNIQUE = Technique(
    name="shard",
    stage=Stage.CLUSTER,
    treats=Symptom.MEMORY_FULL,
    values='"zero2" or "zero3"',
    costs=("gathers parameters in every step", "gathers the whole weights, part by part, at the end"),
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
