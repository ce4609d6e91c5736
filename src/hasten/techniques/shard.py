"""Hold each parameter, gradient and optimizer state in parts, one on each process.

What it does: divides parameters, gradients and optimizer state over the processes of a run (torch's fully_shard). A
layer that the model repeats is gathered when it computes. "zero3" gives it free behind its forward pass and gathers it
again for its backward pass; "zero2" keeps it in between. On one process nothing is shared.

With precision = "bf16", `parameters = "bf16"` gathers the layers that the model repeats in that format, half the bytes,
and they hand it on. `gradients = "bf16"` sums gradients in it. With `meta = true` the first process alone makes the
weights, and the others get their parts of them: they never have the memory of the whole.

Why it is faster: it is not; it makes room. Where a model does not fit beside its optimizer's state, or only with a tiny
batch, each process of N holds about one N-th of both, and the room is worth a larger batch.

When it loses: where all fits anyway. Parameters then travel in every step, once or twice, that would stay where they
are.

What it gave up: nothing but rounding. Gradients are summed over the processes in another order. With `parameters`,
what those layers add up and norm has 8 bits too; with `gradients`, each sum over the processes.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.facts.machine import Machine
from hasten.parallel.options import ShardOptions
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

META = "meta"
_VALUES = ("zero3", "zero2")  # the one that makes the most room first
_FIX = 'write "zero2" or "zero3"; as options parameters = "bf16", gradients = "bf16" and meta = true'


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if not setup.ranks.many:
        return No("one process has nobody to share with; hasten train --nproc starts several")
    return Yes()


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    return [Choice(technique="shard", value=value, preserves=Preserves.ROUNDING) for value in _VALUES]


def apply(setup: Setup, choice: Choice) -> None:
    options = dict(choice.options)
    travels = [options.pop(name, None) for name in ("parameters", "gradients")]
    meta = options.pop(META, False)
    sensible = all(each in (None, "bf16") for each in travels) and isinstance(meta, bool)
    if choice.value not in _VALUES or options or not sensible:
        raise PlanError(f"the plan asks for {choice}", where="shard", fix=_FIX)
    parameters, gradients = (torch.bfloat16 if each else None for each in travels)
    setup.shard = ShardOptions(
        keeps_gathered=choice.value == "zero2", parameters=parameters, gradients=gradients, made_once=bool(meta)
    )


TECHNIQUE = Technique(
    name="shard",
    stage=Stage.CLUSTER,
    treats=Symptom.MEMORY_FULL,
    values='"zero2" or "zero3"; parameters and gradients = "bf16", meta = true or false',
    costs=("gathers parameters in every step", "gathers the whole weights, part by part, at the end"),
    source="https://docs.pytorch.org/docs/stable/distributed.fsdp.fully_shard.html",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
