"""The fastest microbatch that fits, found by running whole optimizer steps of the job itself.

The global batch stays. Sizes are the batch and its halves, each in a run of its own; there are two rounds, down and up,
so that a machine that slows down meanwhile does not decide. Halving ends when two sizes in a row were slower.
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

WARM_UP, TIMED = 2, 6  # optimizer steps of one run
SLOWER_IN_A_ROW = 2


@dataclass(frozen=True, kw_only=True, slots=True)
class MicrobatchTrial:
    """What one size did. Seconds are those of whole optimizer steps, data included."""

    size: int
    fits: bool
    step_seconds: tuple[float, ...] = ()  # every timed step; empty when it does not fit

    @property
    def median_seconds(self) -> float:
        return median(self.step_seconds) if self.step_seconds else float("inf")


@dataclass(frozen=True, kw_only=True, slots=True)
class MicrobatchSearch:
    batch_size: int
    trials: tuple[MicrobatchTrial, ...]  # largest first

    @property
    def fastest(self) -> MicrobatchTrial:
        """Of the sizes that ran; the larger of two that are alike."""
        return min(self.trials, key=lambda trial: trial.median_seconds)


def fastest_microbatch(
    job: Job, plan: Plan | None = None, *, watch: Callable[[MicrobatchTrial], None] = lambda trial: None
) -> MicrobatchSearch:
    """Try the batch and its halves on the job, by its plan, and time them.

    watch: called after every run of a size. Random states, those of the device included, are restored. Raises
    OutOfMemory when not even one sample fits.
    """
    job, plan = replace(job, average=None), plan or Plan()
    with brief_run(job, _with_size(plan, None), name="", steps=1) as run:
        batch_size = run.built.batch_size

    def tried(size: int) -> MicrobatchTrial:
        return _tried(job, _with_size(plan, None if size == batch_size else size), size, watch)

    first, best, slower = list[MicrobatchTrial](), float("inf"), 0
    for size in (batch_size, *halves(batch_size)):
        first.append(tried(size))
        slower = slower + 1 if first[-1].fits and first[-1].median_seconds > best else 0
        best = min(best, first[-1].median_seconds)
        if slower == SLOWER_IN_A_ROW:
            break
    fitting = [trial.size for trial in first if trial.fits]
    if not fitting:
        raise OutOfMemory(
            "not even one sample at a time fits into memory",
            where="microbatch",
            fix="use a smaller model, activation_checkpointing, or a device with more memory",
        )
    second = {size: tried(size).step_seconds for size in reversed(fitting)}
    trials = (replace(trial, step_seconds=trial.step_seconds + second.get(trial.size, ())) for trial in first)
    return MicrobatchSearch(batch_size=batch_size, trials=tuple(trials))


def _tried(job: Job, plan: Plan, size: int, watch: Callable[[MicrobatchTrial], None]) -> MicrobatchTrial:
    try:
        trial = MicrobatchTrial(size=size, fits=True, step_seconds=tuple(_timed_steps(job, plan)))
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        trial = MicrobatchTrial(size=size, fits=False)
    # Outside the except block, whose traceback keeps the failed step's tensors alive.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    watch(trial)
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
