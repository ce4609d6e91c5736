"""Let neighbouring processes hold a model one behind the other, each some of the blocks that it repeats.

What it does: cuts the blocks that a model repeats into so many stages, by their measured seconds, or before those that
are named: `before = ["blocks.4"]`. These processes read the same samples, in equal microbatches, at least as many as
`microbatches` says, and twice as many as there are stages by itself. One stage computes a microbatch while the next
computes the one before. `schedule`: "1f1b" begins backward passes as soon as it can, and keeps the graphs of no more
microbatches than there are stages; "gpipe" computes all forward passes first; "interleaved" gives each process two
stages that lie apart, so that it waits for less. What lies around the blocks is held by each process.

Why it is faster: a process computes, updates and keeps its own blocks alone, and sends one activation for each
microbatch, which slow links bear. And it makes room: blocks, their gradients and their optimizer's state are divided.

When it loses: processes wait while the first microbatches come and the last ones go, for longer with few microbatches.
Small microbatches use a device badly. Each stage computes what lies before the blocks anew, and gradients of what lies
around them are summed in every step.

What it gave up: nothing but rounding, where layers look at one sample at a time. Batch norm sees microbatches, as with
accumulation. Processes are seeded alike, but what dropout draws in a stage differs from what one process would draw. An
optimizer that looks at all parameters at once sees those of its process.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.machine import Machine
from hasten.parallel.options import PipelineOptions, Schedule
from hasten.techniques.common.batch_split import split_preserves
from hasten.techniques.common.repeated_blocks import repeated_blocks
from hasten.techniques.contract import No, Stage, Symptom, Technique, Yes
from hasten.techniques.setup import Setup

_SCHEDULES = ("1f1b", "gpipe", "interleaved")
_FIX = (
    'write the number of stages, 2 or more; as options schedule = "1f1b", "gpipe" or "interleaved", microbatches = a '
    'whole number, before = a list of names such as ["blocks.4"]'
)


def applies(setup: Setup, machine: Machine) -> Yes | No:
    if not setup.ranks.many:
        return No("one process has nobody to hand on to; hasten train --nproc starts several")
    blocks = len(repeated_blocks(setup.model))
    return Yes() if blocks > 1 else No("the model repeats no blocks between which it could be cut")


def candidates(setup: Setup, machine: Machine) -> Sequence[Choice]:
    size, blocks = setup.ranks.size, len(repeated_blocks(setup.model))
    sizes = [each for each in range(2, min(size, blocks) + 1) if size % each == 0]
    return [Choice(technique="pipeline", value=each, preserves=split_preserves(setup)) for each in sizes]


def apply(setup: Setup, choice: Choice) -> None:
    stages, options = choice.value, dict(choice.options)
    if not _is_number(stages, 2):
        raise PlanError(f"the plan asks for {choice}", where="pipeline", fix=_FIX)
    stages = cast("int", stages)
    schedule, before = options.pop("schedule", "1f1b"), options.pop("before", [])
    microbatches = options.pop("microbatches", 2 * stages)
    if options or schedule not in _SCHEDULES or not _is_number(microbatches, 1) or not isinstance(before, list):
        raise PlanError(f"the plan asks for {choice}", where="pipeline", fix=_FIX)
    blocks = repeated_blocks(setup.model)
    found = PipelineOptions(
        stages=stages,
        schedule=cast("Schedule", schedule),
        microbatches=cast("int", microbatches),
        blocks=tuple(blocks),
        before=tuple(map(str, before)),
    )
    if len(blocks) < found.chunks:
        what = f"the model repeats {len(blocks)} blocks, and the plan asks for {found.chunks} stages"
        raise PlanError(what, where="pipeline", fix="write fewer stages, or leave `pipeline` out")
    _check_names(found)
    if setup.ranks.many:
        setup.pipeline = found


def _check_names(options: PipelineOptions) -> None:
    strange = [name for name in options.before if name not in options.blocks]
    if strange:
        raise PlanError(
            f"before names {strange[0]!r}, which is no block that the model repeats",
            where="pipeline",
            fix=f"write names such as {', '.join(options.blocks[1:4])}",
        )
    if options.before and len(options.before) != options.chunks - 1:
        what = f"before names {len(options.before)} blocks, and {options.chunks} stages begin with one less than that"
        raise PlanError(what, where="pipeline", fix=f"name {options.chunks - 1} blocks, or none")


def _is_number(value: object, least: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


TECHNIQUE = Technique(
    name="pipeline",
    stage=Stage.CLUSTER,
    treats=Symptom.MEMORY_FULL,
    values="a whole number, 2 or more; schedule, microbatches, and before = a list of names",
    costs=("processes wait while a step begins and ends", "gathers blocks at the end"),
    source="https://arxiv.org/abs/1811.06965",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
