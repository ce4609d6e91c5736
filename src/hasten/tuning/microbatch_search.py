"""The fastest microbatch that fits, found by running whole optimizer steps of the job itself.

The global batch stays. Sizes are the batch and its halves, each in a run of its own, until two in a row were slower.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from statistics import median

import torch

from hasten.errors import OutOfMemory
from hasten.facts.choice import Choice, Preserves
from hasten.facts.job import Job
from hasten.facts.plan import Plan, PlannedChoice
from hasten.techniques.microbatch import halves
from hasten.training.failures.as_failure import is_out_of_memory
from hasten.training.probes.brief_run import brief_run, whole_step

Watch = Callable[[int, int], object]
"""(done, whole)"""
WARM_UP, TIMED = 2, 12  # optimizer steps of one run


@dataclass(frozen=True, kw_only=True, slots=True)
class MicrobatchTrial:
    """What one size did. Seconds are those of whole optimizer steps, data included."""

    size: int
    step_seconds: tuple[float, ...] = ()  # every timed step; empty when it does not fit into memory

    @property
    def median_seconds(self) -> float:
        return median(self.step_seconds) if self.step_seconds else float("inf")


def microbatch_trials(
    job: Job, plan: Plan | None = None, *, watch: Watch = lambda done, whole: None
) -> list[MicrobatchTrial]:
    """Time the batch and its halves on the job, by its plan; one at least fits into memory.

    watch: receives the sizes that are done, and all. Random states, those of the device included, are restored. Raises
    OutOfMemory when not even one sample fits.
    """
    job, plan = replace(job, average=None), plan or Plan()
    with brief_run(job, _with_size(plan, None), name="", steps=1) as run:
        batch_size = run.built.batch_size
    trials = list[MicrobatchTrial]()
    sizes = [batch_size, *halves(batch_size)]
    for size in sizes:
        trials.append(_tried(job, _with_size(plan, None if size == batch_size else size), size))
        watch(len(trials), len(sizes))
        medians = [trial.median_seconds for trial in trials if trial.step_seconds]
        if len(medians) > 2 and min(medians[:-2]) < min(medians[-2:]):
            break
    if not any(trial.step_seconds for trial in trials):
        raise OutOfMemory(
            "not even one sample at a time fits into memory",
            where="microbatch",
            fix="use a smaller model, activation_checkpointing, or a device with more memory",
        )
    return trials


def _tried(job: Job, plan: Plan, size: int) -> MicrobatchTrial:
    try:
        trial = MicrobatchTrial(size=size, step_seconds=tuple(_timed_steps(job, plan)))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        trial = MicrobatchTrial(size=size)
    # Outside the except block, whose traceback keeps the failed step's tensors alive.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    return trial


def _timed_steps(job: Job, plan: Plan) -> Iterator[float]:
    with brief_run(job, plan, name="", steps=WARM_UP + TIMED) as run:
        step = whole_step(run)
        for number in range(WARM_UP + TIMED):
            started = time.perf_counter()
            step()
            if run.device.type == "cuda":
                torch.cuda.synchronize(run.device)
            if number >= WARM_UP:
                yield time.perf_counter() - started


def _with_size(plan: Plan, size: int | None) -> Plan:
    """The plan with this microbatch size in place of what it says about splitting the batch; None for the whole."""
    others = tuple(each for each in plan.choices if each.choice.technique not in ("microbatch", "accumulation"))
    if size is None:
        return replace(plan, choices=others)
    chosen = Choice(technique="microbatch", value=size, preserves=Preserves.ROUNDING)
    return replace(plan, choices=(*others, PlannedChoice(choice=chosen)))
