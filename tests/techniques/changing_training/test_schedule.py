"""Schedulers that a plan can name, their arguments and the metric that they watch."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim import lr_scheduler
from torchmetrics.classification import MulticlassAccuracy

import hasten
from hasten.entry import prepare
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.plan import make_plan
from hasten.techniques.contract import Yes
from hasten.techniques.schedule import TECHNIQUE, schedule_options, scheduler_names
from hasten.techniques.setup import ScheduleOptions, Setup
from support import setup_of, small_job


def setup(optimizer=None, **job):
    optimizer = optimizer or (lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9))
    return setup_of(nn.Linear(6, 3), None, optimizer=optimizer, **job)


def proposed(target):
    assert TECHNIQUE.applies(target) == Yes()
    return TECHNIQUE.candidates(target)


def test_applying_fills_the_setup():
    target = setup()
    options = {"step_size": 30, "gamma": 0.2, "unit": "epoch"}
    TECHNIQUE.apply(target, Choice(technique="schedule", value="StepLR", preserves=Preserves.TRAINING, options=options))
    assert target.schedule == ScheduleOptions(name="StepLR", arguments={"step_size": 30, "gamma": 0.2}, unit="epoch")


def test_the_default_unit_is_evaluations_for_a_plateau_and_steps_for_all_others():
    assert schedule_options("ReduceLROnPlateau", {}).unit == "evaluation"
    assert schedule_options("OneCycleLR", {"max_lr": 0.1}).unit == "step"


@pytest.mark.parametrize("name", scheduler_names())
def test_every_scheduler_that_a_plan_can_name_is_built_from_what_it_needs(name):
    needed = {"StepLR": {"step_size": 3}, "MultiStepLR": {"milestones": [3, 5]}, "ExponentialLR": {"gamma": 0.9},
              "CyclicLR": {"base_lr": 0.01, "max_lr": 0.1}, "OneCycleLR": {"max_lr": 0.1, "total_steps": 4},
              "CosineAnnealingLR": {"T_max": 4}, "CosineAnnealingWarmRestarts": {"T_0": 4}}.get(name, {})  # fmt: skip
    arguments = schedule_options(name, needed).arguments
    optimizer = torch.optim.SGD([torch.zeros(1)], lr=0.1, momentum=0.9)
    assert isinstance(getattr(lr_scheduler, name)(optimizer, **arguments), lr_scheduler.LRScheduler)


@pytest.mark.parametrize(
    ("name", "reason"), [("LambdaLR", "a plan holds no functions"), ("SequentialLR", "is made of other schedulers")]
)
def test_a_scheduler_that_a_plan_cannot_hold_is_refused_with_the_reason(name, reason):
    with pytest.raises(PlanError, match=reason):
        schedule_options(name, {})


@pytest.mark.parametrize(
    ("name", "options", "what"),
    [
        ("OneCycle", {"max_lr": 0.1}, "not a scheduler of torch(.|\n)*OneCycleLR"),
        ("LRScheduler", {}, "not a scheduler of torch"),
        (True, {}, "not a scheduler of torch"),
        ([3, 5], {}, "not a scheduler of torch"),
        ("OneCycleLR", {}, "OneCycleLR needs max_lr"),
        ("OneCycleLR", {"max_lr": 0.1, "max_momentun": 0.9}, 'no argument "max_momentun"(.|\n)*max_momentum'),
        ("OneCycleLR", {"max_lr": 0.1, "last_epoch": 3}, 'no argument "last_epoch"'),
        ("OneCycleLR", {"max_lr": 0.1, "epochs": 3}, 'no argument "epochs"'),
        ("CyclicLR", {"base_lr": 0.1, "max_lr": 0.2, "scale_fn": "x"}, 'no argument "scale_fn"'),
        ("StepLR", {"step_size": 3, "unit": "minute"}, "unit is 'minute'"),
        ("StepLR", {"step_size": 0}, "step_size is 0"),
        ("CosineAnnealingLR", {"T_max": 0}, "T_max is 0"),
        ("CosineAnnealingWarmRestarts", {"T_0": 1.5}, "T_0 is "),
        ("StepLR", {"step_size": 3, "metric": "loss"}, 'no argument "metric"'),
    ],
)
def test_unknown_schedulers_and_arguments_are_refused(name, options, what):
    with pytest.raises(PlanError, match=what):
        schedule_options(name, options)


def test_one_cycle_up_to_the_present_rates_is_proposed():
    (one,) = proposed(setup())
    assert (one.value, one.options) == ("OneCycleLR", {"max_lr": 0.1, "cycle_momentum": True})
    groups = [{"params": [torch.zeros(1)], "lr": 0.5}, {"params": [torch.zeros(1)]}]
    (one,) = proposed(setup(lambda params: torch.optim.AdamW(groups, lr=0.2)))
    assert one.options["max_lr"] == [0.5, 0.2]
    (one,) = proposed(setup(lambda params: torch.optim.SGD(params, lr=0.1)))
    assert one.options["cycle_momentum"] is False, "there is no momentum"


def test_nothing_is_proposed_for_a_job_with_a_schedule_or_several_rates():
    assert proposed(setup(schedule=lambda optimizer, total_steps: None)) == []
    pair = lambda params: [torch.optim.SGD([torch.zeros(1)], lr=rate) for rate in (0.1, 0.2)]  # noqa: E731
    assert proposed(setup(pair)) == []


class Score:
    """As much of a metric as a schedule asks for."""

    def __init__(self, higher_is_better: bool | None) -> None:
        self.higher_is_better = higher_is_better

    def update(self) -> None: ...
    def compute(self) -> None: ...
    def reset(self) -> None: ...


def plateau(**options: Value) -> Choice:
    return Choice(technique="schedule", value="ReduceLROnPlateau", options=options)


def step_of_evaluations() -> Choice:
    return Choice(technique="schedule", value="ExponentialLR", options={"gamma": 0.9, "unit": "evaluation"})


def judged(better: bool | None) -> Setup:
    rows = torch.zeros(8, 6), torch.zeros(8, dtype=torch.long)
    return setup(valid=rows, metrics={"accuracy": Score(better)})


@pytest.mark.parametrize(
    ("better", "options", "mode"),
    [(True, {}, "max"), (False, {}, "min"), (None, {"mode": "max"}, "max"), (True, {"mode": "max"}, "max")],
)
def test_a_plateau_of_a_metric_follows_the_metrics_direction(better, options, mode):
    target = judged(better)
    TECHNIQUE.apply(target, plateau(metric="accuracy", **options))
    assert target.schedule == ScheduleOptions(
        name="ReduceLROnPlateau", arguments={"mode": mode}, unit="evaluation", metric="accuracy"
    )


@pytest.mark.parametrize("metric", ["acuracy", 1, ["accuracy"]], ids=str)
def test_a_metric_that_the_job_lacks_is_refused_with_those_it_has(metric):
    with pytest.raises(PlanError, match="not a metric of the job") as caught:
        TECHNIQUE.apply(judged(True), plateau(metric=metric))
    assert caught.value.fix == "write one of: loss, accuracy"


def test_a_metric_without_a_direction_needs_a_mode():
    with pytest.raises(PlanError, match="does not say whether higher is better"):
        TECHNIQUE.apply(judged(None), plateau(metric="accuracy"))


@pytest.mark.parametrize("choice", [plateau(), plateau(metric="accuracy"), step_of_evaluations()], ids=str)
def test_a_schedule_of_evaluations_is_refused_without_valid_data(choice):
    with pytest.raises(PlanError, match="the job has no valid data"):
        TECHNIQUE.apply(setup(), choice)


def test_a_run_schedules_by_the_metric_that_its_plan_names():
    rows = small_job().train
    loss = hasten.supervised(nn.functional.cross_entropy)
    job = small_job(loss=loss, epochs=3, valid=rows, metrics={"accuracy": MulticlassAccuracy(3)})
    plan = make_plan(schedule=("ReduceLROnPlateau", {"metric": "accuracy", "patience": 0, "threshold": 10.0}))
    with prepare(job, plan) as run:
        rates = []
        for _ in range(3):
            for batch in run.epoch_batches():
                run.step(batch)
            run.evaluate()
            rates += run.schedule.rates()
    # Only the first accuracy is better than what came before it, which was minus infinity.
    assert rates == [pytest.approx(0.1), pytest.approx(0.01), pytest.approx(0.001)]
