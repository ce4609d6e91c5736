"""From a job's or a plan's schedule to the right scheduler, totals and unit."""

from __future__ import annotations

from functools import partial

import pytest
from torch.optim import lr_scheduler as torch_schedulers

from hasten.errors import JobError
from hasten.facts.job import Schedule
from hasten.techniques.setup import ScheduleOptions
from support.training.schedules import (
    OPTIMIZERS,
    SCHEDULERS,
    TOTAL,
    make_optimizer,
    scheduled,
    torch_loop,
    update,
)

# ── totals and units ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_function_of_epochs_moves_once_an_epoch():
    build = lambda optimizer, total_epochs: torch_schedulers.CosineAnnealingLR(optimizer, total_epochs)  # noqa: E731
    schedule = scheduled(make_optimizer(), build, total_epochs=2)
    for expected in (0.05, 0.0):
        schedule.after_update()
        schedule.after_epoch()
        assert schedule.rates() == [pytest.approx(expected)]
    schedule.after_epoch()
    assert schedule.rates() == [pytest.approx(0.0)], "more epochs than planned keep the last rate"


def test_a_schedule_of_open_unit_is_refused_with_what_to_write():
    with pytest.raises(JobError, match=r"StepLR.*step or once per epoch\n.*hasten.Schedule\(.*unit=\"epoch\""):
        scheduled(make_optimizer(), SCHEDULERS["StepLR"])


def test_a_function_of_both_totals_is_refused_unless_its_unit_is_said():
    def build(optimizer, total_steps, total_epochs):
        return torch_schedulers.StepLR(optimizer, total_steps // total_epochs)

    with pytest.raises(JobError, match="step or once per epoch"):
        scheduled(make_optimizer(), build)
    assert scheduled(make_optimizer(), Schedule(build, unit="step")).unit == "step"


@pytest.mark.parametrize("name", ["total_steps", "total_epochs"])
def test_an_unknown_total_is_refused_with_advice(name):
    builds = {
        "total_steps": lambda optimizer, total_steps: torch_schedulers.StepLR(optimizer, total_steps),
        "total_epochs": lambda optimizer, total_epochs: torch_schedulers.StepLR(optimizer, total_epochs),
    }
    with pytest.raises(JobError, match=rf"needs {name}, which is unknown(.|\n)*→ write Job\."):
        scheduled(make_optimizer(), builds[name], total_steps=None, total_epochs=None)


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda optimizer: None, "returns None"),
        (lambda optimizer: torch_schedulers.StepLR(optimizer, step=3), "cannot be built"),
    ],
    ids=["nothing", "wrong arguments"],
)
def test_what_is_no_scheduler_is_refused(build, what):
    with pytest.raises(JobError, match=what):
        scheduled(make_optimizer(), Schedule(build, unit="step"))


# ── plans ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def planned(name, unit="step", **arguments):
    return ScheduleOptions(name=name, arguments=arguments, unit=unit)


def test_a_plans_schedule_replaces_the_jobs():
    optimizer = make_optimizer()
    schedule = scheduled(optimizer, SCHEDULERS["OneCycleLR"], override=planned("StepLR", step_size=7, gamma=0.3))
    assert [update(optimizer, schedule) for _ in range(TOTAL)] == torch_loop(OPTIMIZERS["SGD"], SCHEDULERS["StepLR"])


@pytest.mark.parametrize(
    ("name", "given", "total"),
    [
        ("OneCycleLR", {"max_lr": 0.4}, "total_steps"),
        ("CosineAnnealingLR", {}, "T_max"),
        ("LinearLR", {"start_factor": 0.5}, "total_iters"),
    ],
)
@pytest.mark.parametrize("unit", ["step", "epoch"])
def test_totals_that_a_plan_leaves_out_are_derived_in_its_unit(name, given, total, unit):
    optimizer = make_optimizer()
    length = {"step": 20, "epoch": 5}[unit]
    schedule = scheduled(optimizer, None, total_steps=20, total_epochs=5, override=planned(name, unit, **given))
    used = []
    for step in range(1, 21):
        used.append(update(optimizer, schedule))
        if step % 4 == 0:
            schedule.after_epoch()
    build = partial(getattr(torch_schedulers, name), **given, **{total: length})
    assert used[:: 20 // length] == torch_loop(OPTIMIZERS["SGD"], build, length)


def test_a_planned_rate_that_the_schedule_would_ignore_is_refused():
    with pytest.raises(JobError, match="learning_rate would have no effect"):
        scheduled(make_optimizer(), SCHEDULERS["OneCycleLR"], planned_rate=0.3)
    scheduled(make_optimizer(), Schedule(SCHEDULERS["StepLR"], unit="epoch"), planned_rate=0.3)
