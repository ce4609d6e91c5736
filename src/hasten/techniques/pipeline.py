"""Divide a model's repeated blocks into stages on neighbouring processes.

What it does: cuts the repeated blocks of a model into this many stages of equally many blocks. The processes of a
pipeline read the same samples, split into equal microbatches. One stage computes a microbatch while the next stage
computes the one before. Each process holds the layers around the blocks.

Options:

  * `microbatches`: a batch has at least this many (default: twice the number
    of stages).
  * `before = ["blocks.4"]`: starts a new stage before each of these blocks.
  * `schedule`: "1f1b" (default) starts backward passes as early as possible,
    and holds the graphs of no more microbatches than there are stages.
    "gpipe" computes all forward passes first. "interleaved" gives each
    process two separate stages, so that it waits less.

Why it is faster: a process computes, updates and stores only its own blocks. For each microbatch it sends one
activation, which slow links can carry. Blocks, gradients and optimizer state are divided, which saves memory.

When it loses: processes wait at the start and at the end of a step, longer with few microbatches. Small microbatches
use a device badly. Each stage computes the layers before the blocks again, and every step sums the gradients of the
layers around the blocks.

What it changes: rounding only ("equal up to rounding"). Batch norm sees microbatches, as with `accumulation` ("same
statistics"). Dropout in a stage draws other numbers than in one process. An optimizer that reads all parameters at once
sees those of its process.

Limits: it needs several processes. A plan cannot combine it with `accumulation`, `microbatch`, `communication`,
`compile` or fp16.

Example:

    [[choice]]
    technique = "pipeline"
    value = 2
    options = { schedule = "1f1b", microbatches = 8 }
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from hasten.errors import PlanError
from hasten.facts.choice import Choice
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.parallel.options import PipelineOptions, Schedule
from hasten.parallel.repeated_blocks import repeated_blocks
from hasten.techniques.common.batch_split import split_preserves
from hasten.techniques.common.plan_values import is_whole, refused
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import Setup

_SCHEDULES = ("1f1b", "gpipe", "interleaved")
_FIX = (
    'write the number of stages, 2 or more; as options schedule = "1f1b", "gpipe" or "interleaved", microbatches = a '
    'whole number, before = a list of names such as ["blocks.4"]'
)


def applies(setup: Setup) -> Yes | No:
    if not setup.ranks.many:
        return No("one process cannot divide a model; hasten train --nproc starts several")
    blocks = len(repeated_blocks(setup.model))
    return Yes() if blocks > 1 else No("the model has no repeated blocks to divide into stages")


def candidates(setup: Setup) -> Sequence[Choice]:
    size, blocks = setup.ranks.size, len(repeated_blocks(setup.model))
    sizes = [each for each in range(2, min(size, blocks) + 1) if size % each == 0]
    return [Choice(technique="pipeline", value=each, preserves=split_preserves(setup)) for each in sizes]


def apply(setup: Setup, choice: Choice) -> None:
    stages, options = choice.value, dict(choice.options)
    if not is_whole(stages, 2):
        raise refused(choice, _FIX)
    schedule, before = options.pop("schedule", "1f1b"), options.pop("before", [])
    microbatches = options.pop("microbatches", 2 * stages)
    if options or schedule not in _SCHEDULES or not is_whole(microbatches) or not isinstance(before, list):
        raise refused(choice, _FIX)
    blocks = repeated_blocks(setup.model)
    found = PipelineOptions(
        stages=stages,
        schedule=cast("Schedule", schedule),
        microbatches=microbatches,
        blocks=tuple(blocks),
        before=tuple(map(str, before)),
    )
    if len(blocks) < found.chunks:
        what = f"the model repeats {len(blocks)} blocks, and the plan asks for {found.chunks} stages"
        raise PlanError(what, where="pipeline", fix="write fewer stages, or remove `pipeline`")
    _check_names(found)
    if setup.ranks.many:
        setup.pipeline = found


def _check_names(options: PipelineOptions) -> None:
    unknown = [name for name in options.before if name not in options.blocks]
    if unknown:
        raise PlanError(
            f"before names {unknown[0]!r}, which is not a repeated block of the model",
            where="pipeline",
            fix=f"write names such as {', '.join(options.blocks[1:4])}",
        )
    if options.before and len(options.before) != options.chunks - 1:
        what = f"before names {len(options.before)} blocks for {options.chunks} stages"
        raise PlanError(what, where="pipeline", fix=f"name {options.chunks - 1} blocks, or none")


TECHNIQUE = Technique(
    name="pipeline",
    stage=Stage.CLUSTER,
    treats=Symptom.MEMORY_FULL,
    values="a whole number, 2 or more: the stages; options: microbatches, before, schedule",
    costs=("processes wait at the start and at the end of each step", "gathers the blocks at the end of the run"),
    source="https://arxiv.org/abs/1811.06965",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
