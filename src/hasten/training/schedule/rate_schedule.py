"""Learning-rate schedules: torch's own schedulers, one for each optimizer, stepped once for each applied update, epoch
or evaluation.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR

from hasten.errors import RAISED, JobError, NonFinite
from hasten.facts.job import Job, Unit
from hasten.techniques.setup import ScheduleOptions
from hasten.training.failures.user_code import IN_THE_JOB
from hasten.training.schedule.group_values import Fault, as_float, check_rates, has_usable_rates
from hasten.training.schedule.schedule_checks import (
    built,
    check_length,
    check_metric,
    check_planned_rate,
    momentum_of,
    unit_of,
    watches_metric,
)
from hasten.training.schedule.schedule_recipe import recipe_of_job, recipe_of_plan
from hasten.training.schedule.torch_schedulers import expect_scheduler_first, parts, restored, storable, with_parts

_SCHEDULED = ("lr", "initial_lr", "max_lr", "min_lr", "momentum", "betas", "base_momentum", "max_momentum")
_OF_THE_JOB = partial(JobError, "schedule")


def build_schedule(
    job: Job,
    optimizers: Sequence[Optimizer],
    total_steps: int | None,
    total_epochs: int | None,
    override: ScheduleOptions | None = None,
    *,
    planned_rate: float | None = None,
) -> RateSchedule:
    """The schedule of a run, over optimizers that have not stepped yet; build it before their state is loaded.

    total_steps, total_epochs: of the planned run, in applied updates and in epochs; None where unknown.
    override: the plan's schedule, which replaces the job's.
    planned_rate: the learning rate that a plan asked for, if it did.

    Raises JobError, or PlanError for the plan's schedule, for all that `schedule_checks` knows.
    """
    if override is not None:
        recipe = recipe_of_plan(override, total_steps, total_epochs)
    elif job.schedule is not None:
        recipe = recipe_of_job(job.schedule, total_steps, total_epochs)
    else:
        return RateSchedule(optimizers, [], fault=partial(JobError, "optimizer"))
    schedulers = [built(recipe, optimizer) for optimizer in optimizers]
    units: set[Unit] = {unit_of(recipe, scheduler) for scheduler in schedulers}
    if len(units) > 1:
        raise recipe.fault(f"moves with every {' and every '.join(sorted(units))}", "build schedulers of one unit")
    unit: Unit = units.pop()
    total = {"step": total_steps, "epoch": total_epochs, "evaluation": None}[unit]
    for scheduler in schedulers:
        check_length(recipe, scheduler, unit, total)
        if unit == "evaluation":
            check_metric(recipe, scheduler, job)
        if planned_rate is not None:
            check_planned_rate(recipe, scheduler)
    has_end = recipe.uses_total or any(hasattr(part, "total_steps") for each in schedulers for part, _ in parts(each))
    return RateSchedule(
        optimizers, schedulers, unit=unit, metric=recipe.metric, end=total if has_end else None, fault=recipe.fault
    )


class RateSchedule:
    """after_update(), after_epoch() and after_evaluation() say what happened; it knows which of them concerns it."""

    def __init__(
        self,
        optimizers: Sequence[Optimizer],
        schedulers: Sequence[Any],
        *,
        unit: Unit = "epoch",
        metric: str = "loss",
        end: int | None = None,
        fault: Fault = _OF_THE_JOB,
    ) -> None:
        """schedulers: one for each optimizer, or none at all, for rates that stay. end: after how many steps, in the
        unit, a schedule that was made for a length has reached it; None for one without. fault: of a value that no step
        can use. depends_on_results: whether the rates cannot be known before the evaluations."""
        self.optimizers, self.schedulers = list(optimizers), list(schedulers)
        self.unit, self.metric, self.end = unit, metric, end
        self._moved, self._fault = 0, fault
        self._due = 0  # of the schedulers, the last so many have still to make the last move
        self._failure: BaseException | None = None  # that a scheduler raised in it
        self._last: tuple[float, float | None] | None = None  # where the rates have moved since the last update
        self.depends_on_results = any(watches_metric(scheduler) for scheduler in self.schedulers)
        if self.schedulers:
            for optimizer in self.optimizers:
                expect_scheduler_first(optimizer)

    def before_update(self, step: int) -> None:
        """That optimizer step comes, from 1 on. Raises what a scheduler raised when it moved after the last step, whose
        weights are complete; and the fault for a rate that this step cannot use."""
        if self._due and self._failure is None:  # the run was resumed, perhaps with another schedule
            self._finish_move()
        if self._failure is not None:
            raise self._failure
        self._last = None
        for optimizer in self.optimizers:
            check_rates(optimizer, step, self._fault)

    def after_update(self) -> None:
        """An update was applied. Not to be called for one that was skipped."""
        if self.schedulers and self.unit == "step":
            if self._moved == self.end:
                raise RuntimeError(f"the schedule ends after {self.end} updates, and one more was applied")
            if self._moved + 1 == self.end:
                self._moved += 1  # no update uses a rate beyond the last; one-cycle would extrapolate its curve there
                return
            self._move()

    def after_epoch(self) -> None:
        """An epoch ended. Skipped updates can make a run longer than its planned epochs; the last rate is kept then."""
        if self.schedulers and self.unit == "epoch" and self._moved != self.end:
            self._move()

    def after_evaluation(self, results: Mapping[str, float]) -> None:
        """An evaluation gave these results, equal on all ranks. Raises NonFinite when the watched one is no number."""
        if not self.schedulers or self.unit != "evaluation":
            return
        if not self.depends_on_results:
            self._move()
            return
        result = float(results[self.metric])
        if not math.isfinite(result):
            raise NonFinite(
                f"the evaluation's {self.metric} is {result}, so the schedule cannot judge it",
                where="Job.schedule",
                fix="lower the learning rate, or look for the first evaluation in which it appears",
            )
        self._move(result)
        if self._failure is not None:  # the evaluation is made again when the run is resumed
            self._moved, self._due = self._moved - 1, 0
            raise self._failure

    def _move(self, *result: float) -> None:
        self._last = self.last()
        self._moved, self._due = self._moved + 1, len(self.schedulers)
        self._finish_move(*result)

    def _finish_move(self, *result: float) -> None:
        """Step the schedulers that have not moved yet. One that raises is left as it was, so that it can be saved."""
        for scheduler in self.schedulers[-self._due :]:
            before = [(part, {**vars(part)}) for part in with_parts(scheduler)]
            try:
                scheduler.step(*result)
            except RAISED as error:
                for part, attributes in before:
                    vars(part).update(attributes)
                error.add_note(f"{IN_THE_JOB}schedule, in step() of {type(scheduler).__name__}")
                self._failure = error
                return
            self._due -= 1

    def last(self) -> tuple[float, float | None]:
        """The last update's learning rate and momentum: of the first parameter group of the first optimizer."""
        return self._last or (self.rates()[0], self.momenta()[0])

    def rates(self) -> list[float]:
        """The next update's learning rate: of the first parameter group of each optimizer."""
        return [as_float(optimizer.param_groups[0].get("lr", math.nan)) for optimizer in self.optimizers]

    def momenta(self) -> list[float | None]:
        """The next update's momentum, or first beta, of the same groups; None for an optimizer without."""
        return [momentum_of(optimizer.param_groups[0]) for optimizer in self.optimizers]

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next rates depend on, as numbers, strings, lists and None, so that JSON can hold it.

        Raises JobError for a scheduler that cannot give its state.
        """
        return {
            "form": self._form(),
            "moved": self._moved,
            "due": self._due,
            "schedulers": [storable(scheduler) for scheduler in self.schedulers],
            "groups": [[_scheduled(group) for group in each.param_groups] for each in self.optimizers],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume where the saved schedule was. The optimizers' own state may be loaded before or after.

        Raises JobError when it was saved by another kind of schedule, or by one of another length.
        """
        for what, mine in self._form().items():
            if mine != (saved := state["form"][what]):
                raise JobError(
                    "schedule",
                    f"has {what} {mine}, but the resumed run had {saved}",
                    "resume with the job and plan that the run was started with, or start a new run",
                )
        for scheduler, saved in zip(self.schedulers, state["schedulers"], strict=True):
            scheduler.load_state_dict(restored(saved, scheduler))
        for optimizer, groups in zip(self.optimizers, state["groups"], strict=True):
            for group, saved in zip(optimizer.param_groups, groups, strict=True):
                _set_scheduled(group, saved)
        for scheduler in self.schedulers:
            if isinstance(scheduler, LambdaLR) and not has_usable_rates(scheduler.optimizer):
                scheduler.last_epoch -= 1
                scheduler.step()  # again, by the function that the job has now, which may be a corrected one
        self._moved, self._due, self._failure = state["moved"], state.get("due", 0), None

    @property
    def kinds(self) -> list[str]:
        return [type(scheduler).__name__ for scheduler in self.schedulers]

    def _form(self) -> dict[str, Any]:
        """What a saved schedule must have in common with this one."""
        groups = [len(each.param_groups) for each in self.optimizers]
        return {"schedulers": self.kinds, "unit": self.unit, "length": self.end, "parameter groups": groups}


def _scheduled(group: Mapping[str, Any]) -> dict[str, Any]:
    """What a scheduler may have written into a parameter group."""
    values = {key: group[key] for key in _SCHEDULED if key in group}
    return {key: [*map(_number, value)] if key == "betas" else _number(value) for key, value in values.items()}


def _set_scheduled(group: dict[str, Any], saved: Mapping[str, Any]) -> None:
    for key, value in saved.items():
        if isinstance(group.get(key), Tensor):
            group[key].fill_(value)  # in place: a captured graph or compiled step reads this very tensor
        else:
            group[key] = tuple(value) if key == "betas" else value


def _number(value: Any) -> float | None:
    """A whole number stays one, so that a resumed run saves what an undisturbed one does."""
    return value if value is None or type(value) is int else as_float(value)
