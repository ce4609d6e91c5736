"""How the schedule of a run is built: by which function, with which totals, and in which unit its steps are counted.

A function that names `total_steps` or `total_epochs` is given those of the planned run.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from torch.optim import Optimizer, lr_scheduler

from hasten.errors import HastenError, JobError, PlanError
from hasten.facts.job import Schedule, Unit
from hasten.techniques.schedule import DERIVED, arguments_of, schedule_options
from hasten.techniques.setup import ScheduleOptions

_REMEDIES = {
    "total_steps": "write Job.max_steps, give data with a length, or a schedule that needs no total",
    "total_epochs": "write Job.epochs, give data with a length, or a schedule that needs no total",
}
_job_fault = partial(JobError, "schedule")


@dataclass(frozen=True, kw_only=True, slots=True)
class Recipe:
    """build: makes the scheduler of one optimizer; every total is already in it.
    unit: what one of its steps is; None where it depends on the built scheduler.
    metric: the evaluation result that a scheduler watches, if it watches one.
    uses_total: whether the planned length went into it.
    fault: (what was wrong, what to write) -> the error to raise, which names the job or the plan.
    """

    build: Callable[[Optimizer], Any]
    unit: Unit | None
    metric: str
    uses_total: bool
    fault: Callable[[str, str], HastenError]


def recipe_of_job(schedule: Schedule | Callable[..., Any], total_steps: int | None, total_epochs: int | None) -> Recipe:
    """The recipe of Job.schedule. Raises JobError when it asks for what the planned run cannot give."""
    build = schedule.build if isinstance(schedule, Schedule) else schedule
    totals = {"total_steps": total_steps, "total_epochs": total_epochs}
    parameters = inspect.signature(build).parameters
    bound = build.keywords if isinstance(build, partial) else {}
    wanted = [name for name in totals if name in parameters and name not in bound]
    for name in wanted:
        if totals[name] is None:
            raise _job_fault(f"needs {name}, which is unknown, as the data has no length", _REMEDIES[name])
    named = [name for name in totals if name in parameters]
    units: dict[str, Unit] = {"total_steps": "step", "total_epochs": "epoch"}
    return Recipe(
        build=partial(build, **{name: totals[name] for name in wanted}),
        unit=schedule.unit if isinstance(schedule, Schedule) else units[named[0]] if len(named) == 1 else None,
        metric=schedule.metric if isinstance(schedule, Schedule) else "loss",
        uses_total=bool(wanted),
        fault=_job_fault,
    )


def recipe_of_plan(options: ScheduleOptions, total_steps: int | None, total_epochs: int | None) -> Recipe:
    """The recipe of a plan's schedule, its missing totals derived. Raises PlanError when they cannot be."""
    checked = schedule_options(options.name, {**options.arguments, "unit": options.unit})
    total = {"step": total_steps, "epoch": total_epochs, "evaluation": None}[checked.unit]
    wanted = [name for name in DERIVED if name in arguments_of(checked.name) and name not in checked.arguments]
    for name in wanted:
        if total is None:
            raise _plan_fault(
                f"{checked.name} needs {name}, and how many {checked.unit}s the run has is unknown",
                f"write {name} among the choice's options",
            )
    arguments = {**checked.arguments, **dict.fromkeys(wanted, total)}
    return Recipe(
        build=partial(getattr(lr_scheduler, checked.name), **arguments),
        unit=checked.unit,
        metric=options.metric,
        uses_total=bool(wanted),
        fault=_plan_fault,
    )


def _plan_fault(was: str, write: str) -> HastenError:
    return PlanError(was, where="schedule", fix=write)
