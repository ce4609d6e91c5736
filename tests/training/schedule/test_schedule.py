"""Schedules move torch's schedulers: every number is compared with torch's own loop, bit for bit."""

from __future__ import annotations

import json

import pytest
import torch
from torch import nn
from torch.optim import SGD
from torch.optim import lr_scheduler as torch_schedulers

from hasten.errors import JobError
from hasten.facts.job import Schedule
from support.training.schedules import (
    OPTIMIZERS,
    SCHEDULERS,
    TOTAL,
    VALID,
    HalvesWhenTold,
    each_optimizer,
    each_scheduler,
    make_optimizer,
    scheduled,
    torch_loop,
    update,
)


@pytest.mark.trap(15)
@each_optimizer
@each_scheduler
def test_rates_and_momenta_of_every_update_are_torchs(make, build):
    optimizer = make_optimizer(make)
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    assert [update(optimizer, schedule) for _ in range(TOTAL)] == torch_loop(make, build)


@pytest.mark.trap(15)
@pytest.mark.trap(19)
@each_scheduler
def test_a_skipped_update_moves_no_schedule(build):
    skips = [step % 3 == 1 for step in range(TOTAL)]
    optimizer = make_optimizer()
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    used = [update(optimizer, schedule) for skipped in skips if not skipped]
    assert used == torch_loop(OPTIMIZERS["SGD"], build)[: len(used)]


@pytest.mark.trap(15)
@pytest.mark.trap(18)
@each_optimizer
@each_scheduler
def test_a_resumed_schedule_goes_on_as_torch_would(make, build):
    optimizer = make_optimizer(make)
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    used = [update(optimizer, schedule) for _ in range(10)]
    saved, text = optimizer.state_dict(), json.dumps(schedule.state_dict(), allow_nan=False)
    initial = [float(group.get("initial_lr", 0)) for group in optimizer.param_groups]

    optimizer = make_optimizer(make)
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    optimizer.load_state_dict(saved)
    schedule.load_state_dict(json.loads(text))
    assert [float(group.get("initial_lr", 0)) for group in optimizer.param_groups] == initial
    used += [update(optimizer, schedule) for _ in range(TOTAL - 10)]
    assert used == torch_loop(make, build)


@pytest.mark.trap(18)
def test_a_resumed_whole_number_stays_a_whole_number():
    optimizer = SGD([nn.Parameter(torch.ones(1))], lr=1, momentum=0)
    text = json.dumps(scheduled(optimizer, None).state_dict())
    scheduled(optimizer, None).load_state_dict(json.loads(text))
    assert [repr(optimizer.param_groups[0][name]) for name in ("lr", "momentum")] == ["1", "0"]


@pytest.mark.trap(18)
@each_scheduler
def test_with_epochs_as_unit_only_their_ends_move_it(build):
    optimizer, used = make_optimizer(), []
    schedule = scheduled(optimizer, Schedule(build, unit="epoch"), total_steps=3 * TOTAL)
    for _ in range(TOTAL):
        in_epoch = [update(optimizer, schedule) for _ in range(3)]
        assert in_epoch[0] == in_epoch[1] == in_epoch[2]
        used.append(in_epoch[0])
        schedule.after_epoch()
    assert used == torch_loop(OPTIMIZERS["SGD"], build)


@pytest.mark.trap(19)
@pytest.mark.parametrize(
    ("unit", "build"),
    [("epoch", build) for build in SCHEDULERS.values()]
    + [("evaluation", build) for name, build in SCHEDULERS.items() if "OneCycle" not in name],
)
def test_moving_before_any_update_was_applied_warns_of_nothing(unit, build):
    schedule = scheduled(make_optimizer(), Schedule(build, unit=unit), valid=VALID)
    for _ in range(2):
        schedule.after_epoch()
        schedule.after_evaluation({"loss": 1.0})


# ── state ───────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_another_kind_unit_or_length_cannot_be_resumed():
    def state(build, unit="step", total=TOTAL):
        return scheduled(make_optimizer(), Schedule(build, unit=unit), total_steps=total).state_dict()

    def cosine(optimizer, total_steps):
        return torch_schedulers.CosineAnnealingLR(optimizer, total_steps)

    mine = scheduled(make_optimizer(), Schedule(cosine, unit="step"))
    for saved, what in (
        (state(SCHEDULERS["StepLR"]), "schedulers"),
        (state(cosine, "epoch"), "unit"),
        (state(cosine, total=TOTAL + 6), "length"),
    ):
        with pytest.raises(JobError, match=rf"has {what} .* the resumed run had"):
            mine.load_state_dict(saved)


def test_a_scheduler_that_cannot_give_its_state_is_said_when_it_is_saved():
    class Stateless:
        def __init__(self, optimizer):
            self.optimizer = optimizer

        def step(self): ...

    class Opaque(HalvesWhenTold):
        def __init__(self, optimizer):
            self.helper = object()
            super().__init__(optimizer)

    for build, why in ((Stateless, "has no state_dict"), (Opaque, "keeps a object in its state")):
        schedule = scheduled(make_optimizer(), Schedule(build, unit="step"))
        schedule.after_update()
        with pytest.raises(JobError, match=why):
            schedule.state_dict()
