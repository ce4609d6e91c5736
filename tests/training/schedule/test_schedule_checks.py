"""What is wrong with a schedule is said before the first step."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from torch.optim import lr_scheduler as torch_schedulers

from hasten.errors import JobError, NonFinite, PlanError
from hasten.facts.job import Schedule
from hasten.techniques.setup import ScheduleOptions
from hasten.training.schedule.rate_schedule import build_schedule
from support import small_job
from support.training.schedules import (
    OPTIMIZERS,
    SCHEDULERS,
    TOTAL,
    VALID,
    make_optimizer,
    present,
    scheduled,
    torch_loop,
    update,
)

# ── one cycle ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.trap(16)
@pytest.mark.parametrize("length", [TOTAL - 1, TOTAL + 1])
def test_a_one_cycle_schedule_of_another_length_is_refused_with_both_numbers(length):
    build = partial(torch_schedulers.OneCycleLR, max_lr=0.4, total_steps=length)
    with pytest.raises(JobError, match=rf"{length} steps long, and the planned run has {TOTAL} steps"):
        scheduled(make_optimizer(), build)


@pytest.mark.trap(16)
@pytest.mark.parametrize(("length", "fits"), [(TOTAL - 4, True), (TOTAL, False)])
def test_a_one_cycle_schedule_after_a_warm_up_has_the_rest_of_the_run(length, fits):
    def build(optimizer):
        warm = torch_schedulers.LinearLR(optimizer, 0.1, total_iters=4)
        cycle = torch_schedulers.OneCycleLR(optimizer, 0.4, total_steps=length)
        return torch_schedulers.SequentialLR(optimizer, [warm, cycle], [4])

    optimizer = make_optimizer()
    if not fits:
        with pytest.raises(JobError, match=f"{TOTAL} steps long, and the planned run has {TOTAL - 4} steps"):
            scheduled(optimizer, Schedule(build, unit="step"))
        return
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    assert [update(optimizer, schedule) for _ in range(TOTAL)] == torch_loop(OPTIMIZERS["SGD"], build)


@pytest.mark.trap(16)
def test_a_one_cycle_schedule_never_overruns():
    optimizer = make_optimizer()
    schedule = scheduled(optimizer, Schedule(SCHEDULERS["OneCycleLR"], unit="step"))
    for _ in range(TOTAL):
        update(optimizer, schedule)
    with pytest.raises(RuntimeError, match="ends after 24 updates"):
        schedule.after_update()


@pytest.mark.trap(16)
@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR"])
@pytest.mark.parametrize(
    "make",
    [
        lambda groups: torch.optim.SGD(groups, lr=0.1),
        lambda groups: torch.optim.Adam(groups, lr=0.1, betas=(0.0, 0.9)),
    ],
    ids=["SGD", "Adam"],
)
def test_cycling_the_momentum_of_an_optimizer_without_is_refused(make, name):
    with pytest.raises(JobError, match=r"which has none\n.*cycle_momentum=False"):
        scheduled(make_optimizer(make), SCHEDULERS[name])
    without = partial(SCHEDULERS[name], cycle_momentum=False)
    assert scheduled(make_optimizer(make), without).unit == "step"


# ── plateaus ────────────────────────────────────────────────────────────────────────────────────────────────────────

PLATEAU = partial(torch_schedulers.ReduceLROnPlateau, factor=0.5, patience=1)
LOSSES = [3.0, 2.0, 2.5, 2.4, 2.3, 1.0, 1.5, 1.5, 1.5, 1.5]


class Score:
    """As much of a metric as a schedule looks at."""

    higher_is_better = True

    def update(self): ...

    def compute(self): ...

    def reset(self): ...


def plateau_trace(schedule, optimizer, losses):
    trace = []
    for loss in losses:
        update(optimizer, schedule)
        schedule.after_epoch()
        schedule.after_evaluation({"loss": loss, "other": 0.0})
        trace.append(present(optimizer))
    return trace


def torch_plateau(losses):
    optimizer = make_optimizer()
    scheduler, trace = PLATEAU(optimizer), []
    for loss in losses:
        scheduler.step(loss)
        trace.append(present(optimizer))
    return trace


@pytest.mark.trap(17)
def test_a_plateau_moves_after_evaluations_and_survives_resuming():
    optimizer = make_optimizer()
    schedule = scheduled(optimizer, PLATEAU, valid=VALID)
    assert schedule.unit == "evaluation"
    trace = plateau_trace(schedule, optimizer, LOSSES[:4])
    saved, text = optimizer.state_dict(), json.dumps(schedule.state_dict(), allow_nan=False)

    optimizer = make_optimizer()
    schedule = scheduled(optimizer, PLATEAU, valid=VALID)
    optimizer.load_state_dict(saved)
    schedule.load_state_dict(json.loads(text))
    trace += plateau_trace(schedule, optimizer, LOSSES[4:])
    assert trace == torch_plateau(LOSSES)
    assert len({str(each) for each in trace}) > 2


@pytest.mark.trap(17)
@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_metric_that_is_no_number_is_an_error(loss):
    schedule = scheduled(make_optimizer(), PLATEAU, valid=VALID)
    with pytest.raises(NonFinite, match=f"loss is {loss}"):
        schedule.after_evaluation({"loss": loss})


@pytest.mark.trap(17)
def test_a_plateau_that_can_never_move_is_refused():
    with pytest.raises(JobError, match="no valid data"):
        scheduled(make_optimizer(), PLATEAU)
    with pytest.raises(PlanError, match="no valid data"):
        planned = ScheduleOptions(name="ReduceLROnPlateau", arguments={}, unit="evaluation")
        build_schedule(small_job(), [make_optimizer()], TOTAL, None, planned)
    with pytest.raises(JobError, match="'accuracy', which no evaluation gives"):
        scheduled(make_optimizer(), Schedule(PLATEAU, unit="evaluation", metric="accuracy"), valid=VALID)
    with pytest.raises(JobError, match="cannot step once per epoch"):
        scheduled(make_optimizer(), Schedule(PLATEAU, unit="epoch"), valid=VALID)


@pytest.mark.trap(17)
def test_a_plateau_must_know_which_way_is_better():
    job = {"valid": VALID, "metrics": {"score": Score()}}
    with pytest.raises(JobError, match="of 'score' more is better"):
        scheduled(make_optimizer(), Schedule(PLATEAU, unit="evaluation", metric="score"), **job)
    with pytest.raises(JobError, match="of 'loss' less is better"):
        scheduled(make_optimizer(), partial(PLATEAU, mode="max"), **job)
    upward = Schedule(partial(PLATEAU, mode="max"), unit="evaluation", metric="score")
    schedule = scheduled(make_optimizer(), upward, **job)
    for score in (0.5, 0.4, 0.4):
        schedule.after_evaluation({"loss": 0.0, "score": score})
    assert schedule.rates() == [0.05]
