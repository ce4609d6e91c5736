"""The rates and momenta of a whole run before it starts: its own optimizers and schedule, without any update."""

from __future__ import annotations

import math
from dataclasses import dataclass

from hasten.data.order.randomness import undisturbed
from hasten.facts.job import Job
from hasten.techniques.setup import OptimizerOptions, ScheduleOptions
from hasten.training.schedule.rate_schedule import RateSchedule, build_schedule
from hasten.training.setup.optimizers import build_optimizers


@dataclass(frozen=True, kw_only=True, slots=True)
class Trace:
    """What the first parameter group of one optimizer is given, update by update."""

    optimizer: str  # the class's name
    steps: tuple[int, ...]  # 0, 1, …: updates applied before
    rates: tuple[float, ...]
    momenta: tuple[float | None, ...]  # momentum or first beta; None for an optimizer without
    note: str  # what the trace cannot know; empty where it is exact


def trace_schedule(
    job: Job,
    *,
    total_steps: int,
    steps_per_epoch: int | None = None,
    optimizer: OptimizerOptions | None = None,
    schedule: ScheduleOptions | None = None,
) -> list[Trace]:
    """One trace for each optimizer of the job, over `total_steps` applied updates.

    steps_per_epoch: None for data without a length; then no epoch ends.
    optimizer, schedule: what a plan says about them.

    Nothing of the process changes: random states are put back. Raises what building the run would raise.
    """
    options = optimizer or OptimizerOptions()
    with undisturbed():
        optimizers = build_optimizers(job, job.model(), options)
    total_epochs = None if steps_per_epoch is None else math.ceil(total_steps / steps_per_epoch)
    planned = build_schedule(job, optimizers, total_steps, total_epochs, schedule, planned_rate=options.learning_rate)
    rates, momenta = _run_dry(planned, job, total_steps, steps_per_epoch)
    note = "depends on the evaluations; drawn as if every one were an improvement" if planned.depends_on_results else ""
    return [
        Trace(
            optimizer=type(each).__name__,
            steps=tuple(range(total_steps)),
            rates=tuple(row[position] for row in rates),
            momenta=tuple(row[position] for row in momenta),
            note=note,
        )
        for position, each in enumerate(optimizers)
    ]


def _run_dry(
    planned: RateSchedule, job: Job, total_steps: int, steps_per_epoch: int | None
) -> tuple[list[list[float]], list[list[float | None]]]:
    rates: list[list[float]] = []
    momenta: list[list[float | None]] = []
    for step in range(1, total_steps + 1):
        planned.before_update(step)
        rates.append(planned.rates())
        momenta.append(planned.momenta())
        planned.after_update()
        epoch_ends = steps_per_epoch is not None and step % steps_per_epoch == 0
        evaluates = epoch_ends if job.evaluate_every is None else step % job.evaluate_every == 0
        if evaluates and job.valid is not None and not planned.depends_on_results:
            planned.after_evaluation({})
        if epoch_ends:
            planned.after_epoch()
    return rates, momenta
