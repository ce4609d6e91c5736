"""Where the memory and the seconds of a job's step go, on this machine.

A copy of the job is trained for a few dozen steps. FLOPs are counted in the first step (a second one is taken where
the counter fails), memory is traced in the next two, and then whole optimizer steps with their data are timed.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from statistics import quantiles

import torch

from hasten.facts.job import Job
from hasten.facts.plan import Plan
from hasten.measure.flop_count import FlopProfile, profile_flops
from hasten.measure.matmul_rate import MatrixRate, measure_matrix_rate
from hasten.measure.memory_profile import MemoryProfile, profile_memory
from hasten.techniques.allocator import fragmentation
from hasten.training.probes.brief_run import brief_run, whole_step
from hasten.training.run import Run

BEFORE_TIMING = 4  # optimizer steps: two for the arithmetic, two for memory
FEWEST, MOST = 5, 50  # optimizer steps that are timed
Watch = Callable[[int, int], object]
"""(done, whole)"""
TIMED_SECONDS = 5.0  # after which the timing ends, once it has its fewest steps


@dataclass(frozen=True, kw_only=True, slots=True)
class StepTimes:
    """Seconds of one optimizer step, its data included; half of all steps took between `low` and `high`."""

    median_seconds: float
    low: float
    high: float
    steps: int
    data_wait_share: float  # 0 to 1
    samples_per_second: float


@dataclass(frozen=True, kw_only=True, slots=True)
class JobProfile:
    device: str
    parameters: int
    times: StepTimes
    memory: MemoryProfile
    fragmentation: float | None  # share of the reserved memory, 0 to 1; None where torch keeps no cache of it
    flops: FlopProfile
    rate: MatrixRate
    utilization: float | None  # None where no operation was counted


def profile_job(
    job: Job, plan: Plan | None = None, *, name: str = "", watch: Watch = lambda done, whole: None
) -> JobProfile:
    """Train the job briefly by the plan and profile it. The job's own length and schedule are ignored.

    watch: receives the steps that are done, and all; where steps are slow, one counts for several. Random states, those
    of the device included, are restored. Raises what building or training the job raises.
    """
    unjudged = replace(job, stop=None, keep=None, evaluate_every=None, metrics={}, valid=None)
    with brief_run(unjudged, plan, name=name, steps=BEFORE_TIMING + MOST) as run:
        return _profile(run, watch)


def _profile(run: Run, watch: Watch) -> JobProfile:
    step = whole_step(run)
    watch(0, BEFORE_TIMING + MOST)
    built, setup = run.built, run.setup
    flops = profile_flops(step, run.model, run.loader.first_share)
    memory = profile_memory(step, run.model, run.optimizers)
    times = _time(run, step, watch)
    lost = fragmentation(torch.cuda.memory_stats(run.device)) if run.device.type == "cuda" else None
    rate = measure_matrix_rate(setup.step.autocast or next(run.model.parameters()).dtype, run.device)
    reached = (flops.flops_per_sample or 0.0) * times.samples_per_second / rate.flops_per_second
    return JobProfile(
        device=str(run.device),
        parameters=built.fingerprint.parameters,
        times=times,
        memory=memory,
        fragmentation=lost,
        flops=flops,
        rate=rate,
        utilization=reached or None,
    )


def _time(run: Run, step: Callable[[], None], watch: Watch) -> StepTimes:
    waited, seen, seconds = run.built.batches.wait_seconds, run.built.batches.samples_seen, list[float]()
    begin = _now(run.device)
    first, ends = begin, begin + TIMED_SECONDS
    while len(seconds) < FEWEST or (len(seconds) < MOST and begin < ends):
        step()
        end = _now(run.device)
        seconds.append(end - begin)
        begin = end
        slow = min((end - first) / TIMED_SECONDS, len(seconds) / FEWEST)
        watch(BEFORE_TIMING + max(len(seconds), round(slow * MOST)), BEFORE_TIMING + MOST)
    low, middle, high = quantiles(seconds, n=4)
    total = sum(seconds)
    return StepTimes(
        median_seconds=middle,
        low=low,
        high=high,
        steps=len(seconds),
        data_wait_share=min((run.built.batches.wait_seconds - waited) / total, 1.0),
        samples_per_second=(run.built.batches.samples_seen - seen) * run.grid.data.size / total,
    )


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)  # queued work would be counted in the next step
    return time.perf_counter()
