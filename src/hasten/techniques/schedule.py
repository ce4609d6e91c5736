"""Change the learning rate during the run by one of torch's schedulers.

What it does: replaces the job's schedule. The value is a class name in torch.optim.lr_scheduler, and the options are
its arguments. `total_steps`, `T_max` and `total_iters` default to the length of the planned run.

Options: `unit`, when the scheduler steps: "step" (an applied update; the default), "epoch" or "evaluation" (the default
of ReduceLROnPlateau). `metric`, the evaluation result that ReduceLROnPlateau watches: "loss" (default) or a metric of
the job; write `mode` too where the metric does not say whether higher is better.

Why it is faster: a rate that rises, peaks and falls can be larger in the middle than any constant rate, and ends with
less noise. One cycle often needs a fraction of the steps ("super-convergence", Smith and Topin 2018).

When it loses: on runs that stop early, because the gain comes at the falling end; and with a peak that is too high.

What it changes: training ("changes training"). `hasten tune` tries it only with `--allow training`, and judges it by
the time to the target.

Limits: schedulers made of functions (LambdaLR) or of other schedulers (SequentialLR) belong in `Job.schedule`.

Example:

    [[choice]]
    technique = "schedule"
    value = "OneCycleLR"
    options = { max_lr = 0.1 }
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch.optim import lr_scheduler

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.formatting import did_you_mean
from hasten.facts.job import UNITS, Job, describe
from hasten.facts.techniques.stage import Stage
from hasten.facts.techniques.symptom import Symptom
from hasten.techniques.common.job_optimizers import has_momentum, present_optimizers
from hasten.techniques.contract import No, Technique, Yes
from hasten.techniques.setup import ScheduleOptions, Setup

DERIVED = ("total_steps", "T_max", "total_iters")
_COUNTS = (*DERIVED, "step_size", "step_size_up", "step_size_down", "T_0", "T_mult")
_NOT_IN_A_PLAN = {
    "LambdaLR": "takes a function, and a plan holds no functions",
    "MultiplicativeLR": "takes a function, and a plan holds no functions",
    "SequentialLR": "is made of other schedulers, and a plan holds only numbers and words",
    "ChainedScheduler": "is made of other schedulers, and a plan holds only numbers and words",
}
_NOT_ARGUMENTS = {"self", "optimizer", "last_epoch", "scale_fn", "epochs", "steps_per_epoch", "verbose"}


def scheduler_names() -> list[str]:
    """The classes of torch.optim.lr_scheduler that a plan can name."""
    return [name for name in lr_scheduler.__all__ if name != "LRScheduler" and name not in _NOT_IN_A_PLAN]


def arguments_of(name: str) -> dict[str, inspect.Parameter]:
    """The arguments of this scheduler that a plan can write."""
    parameters = inspect.signature(getattr(lr_scheduler, name)).parameters
    return {key: parameter for key, parameter in parameters.items() if key not in _NOT_ARGUMENTS}


def schedule_options(name: Value, options: Mapping[str, Value]) -> ScheduleOptions:
    """The scheduler that a plan describes. Raises PlanError for an unknown class, and an unknown or missing
    argument."""
    if not isinstance(name, str) or name not in {*scheduler_names(), *_NOT_IN_A_PLAN}:
        what = f"{name!r} is not a scheduler of torch"
        raise PlanError(what, where="schedule", fix=did_you_mean(str(name), scheduler_names()))
    if name in _NOT_IN_A_PLAN:
        raise PlanError(f"{name} {_NOT_IN_A_PLAN[name]}", where="schedule", fix="write it as Job.schedule")
    given: dict[str, Any] = dict(options)
    unit = given.pop("unit", "evaluation" if name == "ReduceLROnPlateau" else "step")
    if unit not in UNITS:
        raise PlanError(f"unit is {unit!r}", where="schedule", fix=f"write one of {', '.join(UNITS)}")
    metric = given.pop("metric") if name == "ReduceLROnPlateau" and "metric" in given else "loss"
    _check_arguments(name, given)
    return ScheduleOptions(name=name, arguments=given, unit=unit, metric=metric)


def _check_arguments(name: str, given: Mapping[str, Any]) -> None:
    known = arguments_of(name)
    for key in given:
        if key not in known:
            what = f'{name} has no argument "{key}" that a plan can give'
            raise PlanError(what, where="schedule", fix=did_you_mean(key, known))
        if key in _COUNTS and (type(given[key]) is not int or given[key] < 1):
            what = f"{key} is {describe(given[key])}"
            raise PlanError(what, where="schedule", fix="write a whole number of at least 1")
    for key, parameter in known.items():
        if parameter.default is parameter.empty and key not in given and key not in DERIVED:
            raise PlanError(f"{name} needs {key}", where="schedule", fix=f"write {key} among the choice's options")


def applies(setup: Setup) -> Yes | No:
    groups = [group for optimizer in present_optimizers(setup) for group in optimizer.param_groups]
    return Yes() if all("lr" in group for group in groups) else No("a parameter group has no learning rate")


def candidates(setup: Setup) -> Sequence[Choice]:
    """One cycle up to the optimizer's rates. Nothing for a job with a schedule of its own, or with several optimizers
    of different rates, which one list of arguments cannot describe."""
    optimizers = present_optimizers(setup)
    rates = [[float(group["lr"]) for group in optimizer.param_groups] for optimizer in optimizers]
    if setup.job.schedule is not None or any(each != rates[0] for each in rates):
        return []
    peak = rates[0][0] if len(set(rates[0])) == 1 else rates[0]
    cycles = all(map(has_momentum, optimizers))
    options: dict[str, Value] = {"max_lr": peak, "cycle_momentum": cycles}
    return [Choice(technique="schedule", value="OneCycleLR", preserves=Preserves.TRAINING, options=options)]


def apply(setup: Setup, choice: Choice) -> None:
    setup.schedule = _evaluated(schedule_options(choice.value, choice.options), setup.job)


def _evaluated(options: ScheduleOptions, job: Job) -> ScheduleOptions:
    """The options with the metric's own direction as the mode. Raises PlanError where evaluations lack the metric."""
    if options.unit == "evaluation" and job.valid is None:
        what, fix = f"{options.name} steps after evaluations, but the job has no valid data", "write Job.valid"
        raise PlanError(what, where="schedule", fix=fix)
    if options.metric == "loss":
        return options
    if options.metric not in (known := ["loss", *job.metrics]):
        what = f"{options.name} watches {options.metric!r}, which is not a metric of the job"
        raise PlanError(what, where="schedule", fix=f"write one of: {', '.join(known)}")
    higher = getattr(job.metrics[options.metric], "higher_is_better", None)
    if "mode" not in options.arguments and higher is None:
        what, fix = f"{options.metric!r} does not say whether higher is better", 'add mode = "max" or mode = "min"'
        raise PlanError(what, where="schedule", fix=fix)
    return replace(options, arguments={"mode": "max" if higher else "min", **options.arguments})


TECHNIQUE = Technique(
    name="schedule",
    stage=Stage.OPTIMIZER,
    treats=Symptom.SLOW_CONVERGENCE,
    values='a class of torch.optim.lr_scheduler, such as "OneCycleLR"; options: its arguments, unit, metric',
    costs=("the final loss may differ",),
    source="https://arxiv.org/abs/1708.07120",
    applies=applies,
    candidates=candidates,
    apply=apply,
)
