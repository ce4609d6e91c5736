"""Checks of a schedule before the first step, for faults that would show after hours."""

from __future__ import annotations

import inspect
from typing import Any

from torch.optim import Optimizer
from torch.optim.lr_scheduler import CyclicLR, OneCycleLR

from hasten.errors import HastenError, UserCodeFailed
from hasten.facts.job import Job, Unit, describe
from hasten.training.schedule.group_values import as_float
from hasten.training.schedule.schedule_recipe import Recipe
from hasten.training.schedule.torch_schedulers import parts
from hasten.users_code import reason_of, users_frame


def built(recipe: Recipe, optimizer: Optimizer) -> Any:
    """The scheduler of one optimizer. Raises the recipe's fault when it is none, or cycles a missing momentum."""
    still = any(not momentum_of(group) for group in optimizer.param_groups)
    try:
        scheduler = recipe.build(optimizer)
    except HastenError:
        raise
    except Exception as error:
        if still and isinstance(error, ValueError) and "cycle_momentum" in str(error):
            raise _momentum_fault(recipe, optimizer) from error
        if isinstance(error, TypeError | ValueError):
            raise recipe.fault(f"cannot be built: {error}", "correct its arguments") from error
        fix = f"look at {users_frame(error)}"
        raise UserCodeFailed(f"raised {reason_of(error)}", where="Job.schedule", fix=fix) from error
    if isinstance(scheduler, Optimizer) or not callable(getattr(scheduler, "step", None)):
        raise recipe.fault(f"returns {describe(scheduler)}", "return a scheduler of torch.optim.lr_scheduler")
    if any(getattr(part, "optimizer", optimizer) is not optimizer for part, _ in parts(scheduler)):
        raise recipe.fault("schedules another optimizer", "build it from the optimizer that the function is given")
    if still and any(getattr(part, "cycle_momentum", False) for part, _ in parts(scheduler)):
        raise _momentum_fault(recipe, optimizer)
    return scheduler


def unit_of(recipe: Recipe, scheduler: Any) -> Unit:
    """What one step of the built scheduler is. Raises the recipe's fault where that is open or contradictory."""
    name = type(scheduler).__name__
    if watches_metric(scheduler):
        if recipe.unit in ("step", "epoch"):
            raise recipe.fault(
                f"{name} watches an evaluation result, and cannot step once per {recipe.unit}",
                'write unit="evaluation"',
            )
        return "evaluation"
    if recipe.unit is not None:
        return recipe.unit
    if any(isinstance(part, OneCycleLR | CyclicLR) for part, _ in parts(scheduler)):
        return "step"
    raise recipe.fault(
        f"builds a {name} and does not say whether it steps once per step or once per epoch",
        'write hasten.Schedule(lambda optimizer: …, unit="epoch") or unit="step"',
    )


def check_length(recipe: Recipe, scheduler: Any, unit: Unit, total: int | None) -> None:
    """A one-cycle schedule must be exactly as long as the run, or as its own part of it. total: steps in the unit."""
    for part, length in parts(scheduler, total):
        if not isinstance(part, OneCycleLR):
            continue
        if length is None:
            raise recipe.fault(
                f"OneCycleLR is {part.total_steps} steps long, and how many {unit}s the run has is unknown",
                'write Job.max_steps, and build it with unit="step"',
            )
        if part.total_steps != length:
            raise recipe.fault(
                f"OneCycleLR is {part.total_steps} steps long, and the planned run has {length} {unit}s for it",
                "take the length that is derived: lambda optimizer, total_steps: OneCycleLR(optimizer, …, total_steps)",
            )


def check_metric(recipe: Recipe, scheduler: Any, job: Job) -> None:
    """There are evaluations, they give what is watched, and the scheduler knows which way is better."""
    name = type(scheduler).__name__
    if job.valid is None:
        raise recipe.fault(f"{name} steps after evaluations, but there is no valid data", "give valid=…")
    if not watches_metric(scheduler):
        return
    if recipe.metric != "loss" and recipe.metric not in job.metrics:
        known = ", ".join(["loss", *job.metrics])
        raise recipe.fault(f"{name} watches {recipe.metric!r}, which no evaluation gives", f"write one of: {known}")
    higher = False if recipe.metric == "loss" else getattr(job.metrics[recipe.metric], "higher_is_better", None)
    better = {True: "max", False: "min"}.get(higher) if higher is not None else None
    mode = getattr(scheduler, "mode", None)
    if better is not None and mode in ("min", "max") and mode != better:
        raise recipe.fault(
            f'{name} has mode="{mode}", and of {recipe.metric!r} {"more" if higher else "less"} is better',
            f'write mode="{better}"',
        )


def check_planned_rate(recipe: Recipe, scheduler: Any) -> None:
    """For a run whose plan replaces the learning rate: the schedule must follow it."""
    for part, _ in parts(scheduler):
        if isinstance(part, OneCycleLR | CyclicLR):
            raise recipe.fault(
                f"{type(part).__name__} sets its own rates, so the plan's learning_rate would have no effect",
                "remove learning_rate from the plan, and change max_lr",
            )


def watches_metric(scheduler: Any) -> bool:
    """True for ReduceLROnPlateau and whatever else cannot step without a number."""
    required = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    parameters = inspect.signature(scheduler.step).parameters.values()
    return any(each.kind in required and each.default is each.empty for each in parameters)


def momentum_of(group: dict[str, Any]) -> float | None:
    """Momentum, or the first beta, of a parameter group; None where it has neither."""
    momentum = group["betas"][0] if "betas" in group else group.get("momentum")
    return None if momentum is None else as_float(momentum)


def _momentum_fault(recipe: Recipe, optimizer: Optimizer) -> HastenError:
    return recipe.fault(
        f"cycles the momentum of {type(optimizer).__name__}, which has none",
        "write cycle_momentum=False, or give the optimizer momentum",
    )
