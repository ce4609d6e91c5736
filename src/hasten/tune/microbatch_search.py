"""The fastest microbatch that fits, found by running whole optimizer steps of the job itself.

The global batch stays: every size divides the same batches, so training does not depend on the answer. Sizes are the
batch and its halves, each in a run of its own. There are two rounds, down and up, so that a machine that slows down
meanwhile does not decide. Halving ends when two sizes in a row were slower than the best.
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
from hasten.facts.machine import read_machine
from hasten.facts.plan import Plan, PlannedChoice
from hasten.techniques.microbatch import halves
from hasten.training.failures.as_failure import is_out_of_memory
from hasten.training.probes.brief_run import undisturbed
from hasten.training.run import Run
from hasten.training.setup.prepared_job import device_of

WARM_UP, TIMED = 2, 6  # optimizer steps of one run
SLOWER_IN_A_ROW = 2
_REPLACED = ("microbatch", "accumulation", "schedule")  # what is searched for, and what needs the run's whole length


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
    plan = plan or Plan()
    with undisturbed(device_of(job, read_machine())):
        first, batch_size = _first_round(job, plan, watch)
        fitting = [trial for trial in first if trial.fits]
        if not fitting:
            raise OutOfMemory(
                "not even one sample at a time fits into memory",
                where="microbatch",
                fix="use a smaller model, activation_checkpointing, or a device with more memory",
            )
        second = {trial.size: _ran(job, plan, trial.size, batch_size, watch) for trial in reversed(fitting)}
    trials = [
        replace(trial, step_seconds=trial.step_seconds + second[trial.size].step_seconds) if trial.fits else trial
        for trial in first
    ]
    return MicrobatchSearch(batch_size=batch_size, trials=tuple(trials))


def _first_round(job: Job, plan: Plan, watch: Callable[[MicrobatchTrial], None]) -> tuple[list[MicrobatchTrial], int]:
    batch_size = _batch_size(job, plan)
    trials: list[MicrobatchTrial] = []
    best, slower = float("inf"), 0
    for size in (batch_size, *halves(batch_size)):
        trials.append(_ran(job, plan, size, batch_size, watch))
        seconds = trials[-1].median_seconds
        slower = slower + 1 if trials[-1].fits and seconds > best else 0
        best = min(best, seconds)
        if slower == SLOWER_IN_A_ROW:
            break
    return trials, batch_size


def _batch_size(job: Job, plan: Plan) -> int:
    with Run(job, _with_size(plan, None)) as run:
        return run.built.batch_size


def _ran(job: Job, plan: Plan, size: int, batch_size: int, watch: Callable[[MicrobatchTrial], None]) -> MicrobatchTrial:
    try:
        seconds = tuple(_timed_steps(job, _with_size(plan, size if size < batch_size else None)))
        trial = MicrobatchTrial(size=size, fits=True, step_seconds=seconds)
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
    steps = WARM_UP + TIMED
    with Run(replace(job, max_steps=steps, epochs=None, schedule=None, stop=None, average=None), plan) as run:
        started = time.perf_counter()
        for batch in run.batches():
            run.step(batch)
            if not run.window_closed:
                continue
            if run.device.type == "cuda":
                torch.cuda.synchronize(run.device)
            now = time.perf_counter()
            if run.steps > WARM_UP:
                yield now - started
            started = now


def _with_size(plan: Plan, size: int | None) -> Plan:
    """The plan with this microbatch size in place of what it says about splitting the batch; None for the whole."""
    others = tuple(item for item in plan.choices if item.choice.technique not in _REPLACED)
    if size is None:
        return replace(plan, choices=others)
    chosen = Choice(technique="microbatch", value=size, preserves=Preserves.ROUNDING)
    return replace(plan, choices=(*others, PlannedChoice(choice=chosen)))
