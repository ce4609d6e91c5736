"""Schedules move torch's schedulers: every number is compared with torch's own loop, bit for bit."""

from __future__ import annotations

import json
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.optim import lr_scheduler as torch_schedulers

from hasten.errors import JobError, NonFinite, PlanError
from hasten.facts.job import Schedule
from hasten.techniques.setup import ScheduleOptions
from hasten.train.schedule import build_schedule
from support import small_job

TOTAL = 24


class HalvesWhenTold(torch_schedulers.LRScheduler):
    """A user's own scheduler, written as torch documents it."""

    def get_lr(self):
        return [base * 0.5 ** (self.last_epoch // 5) for base in self.base_lrs]


class Countdown:
    """A user's own scheduler that has nothing of torch's."""

    def __init__(self, optimizer):
        self.optimizer, self.left = optimizer, TOTAL

    def step(self):
        self.left -= 1
        self.optimizer.param_groups[0]["lr"] = 0.1 * self.left / TOTAL

    def state_dict(self):
        return {"left": self.left}

    def load_state_dict(self, state):
        self.left = state["left"]


class Inverse:
    """A callable object, whose state torch keeps in the scheduler's."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / (1 + self.calls)


def warm_then_cosine(optimizer):
    warm = torch_schedulers.LinearLR(optimizer, 0.1, total_iters=5)
    cosine = torch_schedulers.CosineAnnealingLR(optimizer, TOTAL - 5)
    return torch_schedulers.SequentialLR(optimizer, [warm, cosine], [5])


def chained(optimizer):
    parts = [torch_schedulers.ConstantLR(optimizer, 0.3, total_iters=4), torch_schedulers.ExponentialLR(optimizer, 0.9)]
    return torch_schedulers.ChainedScheduler(parts, optimizer)


SCHEDULERS = {
    "StepLR": partial(torch_schedulers.StepLR, step_size=7, gamma=0.3),
    "MultiStepLR": partial(torch_schedulers.MultiStepLR, milestones=[3, 9, 9, 15], gamma=0.5),
    "ExponentialLR": partial(torch_schedulers.ExponentialLR, gamma=0.93),
    "CosineAnnealingLR": partial(torch_schedulers.CosineAnnealingLR, T_max=TOTAL, eta_min=1e-4),
    "CosineAnnealingWarmRestarts": partial(torch_schedulers.CosineAnnealingWarmRestarts, T_0=5, T_mult=2),
    "PolynomialLR": partial(torch_schedulers.PolynomialLR, total_iters=TOTAL, power=2.0),
    "LinearLR": partial(torch_schedulers.LinearLR, start_factor=0.2, total_iters=9),
    "ConstantLR": partial(torch_schedulers.ConstantLR, factor=0.25, total_iters=6),
    "LambdaLR": partial(torch_schedulers.LambdaLR, lr_lambda=lambda step: 0.97**step),
    "MultiplicativeLR": partial(torch_schedulers.MultiplicativeLR, lr_lambda=lambda step: 0.95),
    "CyclicLR": partial(torch_schedulers.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=5),
    "CyclicLR exp_range": partial(
        torch_schedulers.CyclicLR, base_lr=0.01, max_lr=0.2, step_size_up=4, mode="exp_range", gamma=0.99
    ),
    "OneCycleLR": partial(torch_schedulers.OneCycleLR, max_lr=0.4, total_steps=TOTAL),
    "OneCycleLR three phases": partial(
        torch_schedulers.OneCycleLR, max_lr=0.4, total_steps=TOTAL, three_phase=True, anneal_strategy="linear"
    ),
    "SequentialLR": warm_then_cosine,
    "ChainedScheduler": chained,
    "LambdaLR of an object": lambda optimizer: torch_schedulers.LambdaLR(optimizer, Inverse()),
    "a subclass": HalvesWhenTold,
    "no subclass": Countdown,
}
OPTIMIZERS = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9),
    "AdamW": lambda groups: torch.optim.AdamW(groups, lr=0.1, betas=(0.9, 0.99)),
    "Adam with a tensor rate": lambda groups: torch.optim.Adam(groups, lr=torch.tensor(0.1)),
}
each_scheduler = pytest.mark.parametrize("build", SCHEDULERS.values(), ids=SCHEDULERS)
each_optimizer = pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)


def make_optimizer(make=OPTIMIZERS["SGD"]):
    model = nn.Linear(2, 2)
    optimizer = make([{"params": [model.weight]}, {"params": [model.bias]}])
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return optimizer


def scheduled(optimizer, schedule, *, total_steps=TOTAL, total_epochs=TOTAL, override=None, planned_rate=None, **job):
    return build_schedule(
        small_job(schedule=schedule, **job),
        optimizer if isinstance(optimizer, list) else [optimizer],
        total_steps,
        total_epochs,
        override,
        planned_rate=planned_rate,
    )


def present(optimizer):
    """What every group's next update will use."""
    return [(float(g["lr"]), float(g["betas"][0] if "betas" in g else g["momentum"])) for g in optimizer.param_groups]


def torch_loop(make, build, steps=TOTAL):
    optimizer, trace = make_optimizer(make), []
    scheduler = build(optimizer)
    for _ in range(steps):
        trace.append(present(optimizer))
        optimizer.step()
        scheduler.step()
    return trace


def update(optimizer, schedule):
    used = present(optimizer)
    optimizer.step()
    schedule.after_update()
    return used


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
@settings(max_examples=10, deadline=None)
@given(skips=st.lists(st.booleans(), min_size=TOTAL, max_size=TOTAL))
def test_a_skipped_update_moves_no_schedule(build, skips):
    optimizer = make_optimizer()
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    used = [update(optimizer, schedule) for skipped in skips if not skipped]
    assert used == torch_loop(OPTIMIZERS["SGD"], build)[: len(used)]


@pytest.mark.trap(15)
@pytest.mark.trap(18)
@pytest.mark.parametrize("optimizer_first", [True, False], ids=["optimizer first", "schedule first"])
@each_optimizer
@each_scheduler
def test_a_resumed_schedule_goes_on_as_torch_would(make, build, optimizer_first):
    optimizer = make_optimizer(make)
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    used = [update(optimizer, schedule) for _ in range(10)]
    saved, text = optimizer.state_dict(), json.dumps(schedule.state_dict(), allow_nan=False)
    initial = [float(group.get("initial_lr", 0)) for group in optimizer.param_groups]

    optimizer = make_optimizer(make)
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    for load in [lambda: optimizer.load_state_dict(saved), lambda: schedule.load_state_dict(json.loads(text))][
        :: 1 if optimizer_first else -1
    ]:
        load()
    assert [float(group.get("initial_lr", 0)) for group in optimizer.param_groups] == initial
    used += [update(optimizer, schedule) for _ in range(TOTAL - 10)]
    assert used == torch_loop(make, build)


@pytest.mark.trap(18)
@each_scheduler
def test_a_schedule_that_is_built_over_a_loaded_optimizer_is_right_once_loaded(build):
    optimizer = make_optimizer()
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    used = [update(optimizer, schedule) for _ in range(6)]
    saved, state = optimizer.state_dict(), schedule.state_dict()

    optimizer = make_optimizer()
    optimizer.load_state_dict(saved)
    schedule = scheduled(optimizer, Schedule(build, unit="step"))
    schedule.load_state_dict(state)
    used += [update(optimizer, schedule) for _ in range(TOTAL - 6)]
    assert used == torch_loop(OPTIMIZERS["SGD"], build)


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
@pytest.mark.parametrize("unit", ["epoch", "evaluation"])
@each_scheduler
def test_moving_before_any_update_was_applied_warns_of_nothing(build, unit):
    if unit == "evaluation" and "total_steps" in getattr(build, "keywords", {}):
        pytest.skip("a one-cycle schedule cannot count evaluations")
    schedule = scheduled(make_optimizer(), Schedule(build, unit=unit), valid=(torch.zeros(2, 6), torch.zeros(2)))
    for _ in range(2):
        schedule.after_epoch()
        schedule.after_evaluation({"loss": 1.0})


def test_without_a_schedule_the_rates_stay():
    optimizer = make_optimizer()
    schedule = scheduled(optimizer, None)
    assert len({tuple(update(optimizer, schedule)) for _ in range(5)}) == 1
    schedule.after_epoch()
    schedule.after_evaluation({"loss": 1.0})
    assert (schedule.rates(), schedule.momenta()) == ([0.1], [0.9])


def test_several_optimizers_move_together():
    optimizers = [make_optimizer(), make_optimizer(OPTIMIZERS["AdamW"])]
    build = SCHEDULERS["OneCycleLR"]
    schedule = scheduled(optimizers, Schedule(build, unit="step"))
    used = []
    for _ in range(TOTAL):
        used.append([present(optimizer) for optimizer in optimizers])
        assert schedule.rates() == [each[0][0] for each in used[-1]]
        assert schedule.momenta() == [each[0][1] for each in used[-1]]
        for optimizer in optimizers:
            optimizer.step()
        schedule.after_update()
    alone = [torch_loop(OPTIMIZERS[name], build) for name in ("SGD", "AdamW")]
    assert used == [list(pair) for pair in zip(*alone, strict=True)]


# ── totals and units ────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.trap(18)
@pytest.mark.parametrize("total", [12, 24, 36])
def test_totals_are_those_of_the_planned_run(total):
    optimizer = make_optimizer()
    build = lambda optimizer, total_steps: torch_schedulers.OneCycleLR(optimizer, 0.4, total_steps)  # noqa: E731
    schedule = scheduled(optimizer, build, total_steps=total)
    last = [update(optimizer, schedule) for _ in range(total)][-1]
    assert schedule.unit == "step"
    assert last[0][0] == pytest.approx(0.4 / 25 / 1e4)


def test_a_function_of_epochs_moves_once_an_epoch():
    build = lambda optimizer, total_epochs: torch_schedulers.CosineAnnealingLR(optimizer, total_epochs)  # noqa: E731
    schedule = scheduled(make_optimizer(), build, total_epochs=2)
    for expected in (0.05, 0.0):
        schedule.after_update()
        schedule.after_epoch()
        assert schedule.rates() == [pytest.approx(expected)]
    schedule.after_epoch()
    assert schedule.rates() == [pytest.approx(0.0)], "more epochs than planned keep the last rate"


def test_a_class_bound_with_partial_is_given_its_total():
    schedule = scheduled(make_optimizer(), partial(torch_schedulers.OneCycleLR, max_lr=0.4))
    assert schedule.unit == "step"


def test_a_cyclic_schedule_moves_with_steps_without_being_told():
    assert scheduled(make_optimizer(), SCHEDULERS["CyclicLR"]).unit == "step"


def test_a_schedule_of_open_unit_is_refused_with_what_to_write():
    with pytest.raises(JobError, match=r"StepLR.*step or every epoch\n.*hasten.Schedule\(.*unit=\"epoch\""):
        scheduled(make_optimizer(), SCHEDULERS["StepLR"])


def test_a_function_of_both_totals_is_refused_unless_its_unit_is_said():
    def build(optimizer, total_steps, total_epochs):
        return torch_schedulers.StepLR(optimizer, total_steps // total_epochs)

    with pytest.raises(JobError, match="both total_steps and total_epochs"):
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


def test_a_function_with_a_parameter_of_another_name_is_refused():
    with pytest.raises(JobError, match="needs 'steps'"):
        scheduled(make_optimizer(), lambda optimizer, steps: torch_schedulers.StepLR(optimizer, steps))


@pytest.mark.parametrize(
    ("build", "what"),
    [
        (lambda optimizer: None, "returns None"),
        (lambda optimizer: torch_schedulers.StepLR(make_optimizer(), 3), "another optimizer"),
        (lambda optimizer: torch_schedulers.StepLR(optimizer, step=3), "cannot be built"),
    ],
    ids=["nothing", "another optimizer's", "wrong arguments"],
)
def test_what_is_no_scheduler_of_this_optimizer_is_refused(build, what):
    with pytest.raises(JobError, match=what):
        scheduled(make_optimizer(), Schedule(build, unit="step"))


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
def test_a_one_cycle_schedule_cannot_count_evaluations():
    valid = (torch.zeros(2, 6), torch.zeros(2))
    with pytest.raises(JobError, match="how many evaluations the run has is unknown"):
        scheduled(make_optimizer(), Schedule(SCHEDULERS["OneCycleLR"], unit="evaluation"), valid=valid)


@pytest.mark.trap(16)
@pytest.mark.parametrize("name", ["OneCycleLR", "CyclicLR"])
@pytest.mark.parametrize(
    "make",
    [
        lambda groups: torch.optim.SGD(groups, lr=0.1),
        lambda groups: torch.optim.RMSprop(groups, lr=0.1),
        lambda groups: torch.optim.Adagrad(groups, lr=0.1),
        lambda groups: torch.optim.Adam(groups, lr=0.1, betas=(0.0, 0.9)),
    ],
    ids=["SGD", "RMSprop", "Adagrad", "Adam"],
)
def test_cycling_the_momentum_of_an_optimizer_without_is_refused(make, name):
    with pytest.raises(JobError, match=r"which has none\n.*cycle_momentum=False"):
        scheduled(make_optimizer(make), SCHEDULERS[name])
    without = partial(SCHEDULERS[name], cycle_momentum=False)
    assert scheduled(make_optimizer(make), without).unit == "step"


@pytest.mark.trap(16)
def test_adam_cycles_its_first_beta_and_sgd_its_momentum():
    for name, momentum in {"SGD": 0.95, "AdamW": 0.95}.items():
        optimizer = make_optimizer(OPTIMIZERS[name])
        schedule = scheduled(optimizer, SCHEDULERS["OneCycleLR"])
        momenta = [update(optimizer, schedule)[0][1] for _ in range(TOTAL)]
        assert momenta[0] == momentum
        assert min(momenta) == pytest.approx(0.85, abs=1e-3)
        assert optimizer.param_groups[0].get("betas", (0, 0.99))[1] == 0.99


# ── plateaus ────────────────────────────────────────────────────────────────────────────────────────────────────────

VALID = (torch.zeros(2, 6), torch.zeros(2))
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
def test_a_plateau_that_saw_nothing_yet_can_be_saved():
    schedule = scheduled(make_optimizer(), PLATEAU, valid=VALID)
    schedule.load_state_dict(json.loads(json.dumps(schedule.state_dict(), allow_nan=False)))
    schedule.after_evaluation({"loss": 5.0})
    assert schedule.rates() == [0.1]


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


def test_other_schedules_may_move_with_evaluations_too():
    schedule = scheduled(make_optimizer(), Schedule(SCHEDULERS["ExponentialLR"], unit="evaluation"), valid=VALID)
    schedule.after_evaluation({"loss": float("nan")})
    assert schedule.rates() == [0.1 * 0.93]


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
        ("PolynomialLR", {}, "total_iters"),
        ("ConstantLR", {}, "total_iters"),
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


def test_a_total_that_cannot_be_derived_is_refused():
    with pytest.raises(PlanError, match="CosineAnnealingLR needs T_max, and how many steps"):
        scheduled(make_optimizer(), None, total_steps=None, override=planned("CosineAnnealingLR"))


def test_a_plans_senseless_schedule_is_the_plans_error():
    with pytest.raises(PlanError, match="cannot be built"):
        scheduled(make_optimizer(), None, override=planned("OneCycleLR", max_lr=[0.1]))
    with pytest.raises(PlanError, match="planned run has 24 steps"):
        scheduled(make_optimizer(), None, override=planned("OneCycleLR", max_lr=0.1, total_steps=10))


def test_a_planned_rate_that_the_schedule_would_ignore_is_refused():
    with pytest.raises(JobError, match="learning_rate would do nothing"):
        scheduled(make_optimizer(), SCHEDULERS["OneCycleLR"], planned_rate=0.3)
    scheduled(make_optimizer(), Schedule(SCHEDULERS["StepLR"], unit="epoch"), planned_rate=0.3)


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
        with pytest.raises(JobError, match=rf"has {what} .* that is resumed had"):
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
