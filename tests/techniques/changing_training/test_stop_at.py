"""A run ends with the first evaluation that is good enough, keeps its weights, and a resume knows it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics.classification import MulticlassAccuracy

import hasten
from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves, Value
from hasten.facts.job import Best, EarlyStopping, Job
from hasten.facts.plan import Plan, make_plan
from hasten.techniques.contract import No
from hasten.techniques.setup import Target
from hasten.techniques.stop_at import TECHNIQUE
from hasten.training.run import Run
from support import laptop, setup_of, small_job

ROWS = (torch.randn(8, 6), torch.zeros(8, dtype=torch.long))


def supervised_job(**changes: Any) -> Job:
    job = small_job()
    fields = {"loss": hasten.supervised(nn.functional.cross_entropy), "valid": job.train, "epochs": 6} | changes
    return small_job(metrics={"accuracy": MulticlassAccuracy(3, average="micro")}, **fields)


def applied(value: Value, **options: Value) -> Target | None:
    setup = setup_of(nn.Linear(6, 3), ROWS, laptop(), valid=ROWS, metrics={"accuracy": MulticlassAccuracy(3)})
    TECHNIQUE.apply(setup, Choice(technique="stop_at", value=value, preserves=Preserves.TRAINING, options=options))
    return setup.evaluation.target


def losses(job: Job) -> list[float]:
    """Of every evaluation of the whole run."""
    with Run(job) as run:
        found = list[float]()
        while not run.finished:
            for batch in run.epoch_batches():
                run.step(batch)
            found.append(run.evaluate().results["loss"])
        return found


def stopping_at(value: float) -> Plan:
    return make_plan(stop_at=("loss", {"at_most": value}))


def test_a_run_ends_with_the_first_evaluation_that_is_at_least_as_good_and_keeps_its_weights():
    whole = losses(supervised_job())
    assert whole == sorted(whole, reverse=True)
    trained = hasten.train(supervised_job(), stopping_at(whole[2]))
    assert (trained.steps, trained.results["loss"]) == (15, whole[2])
    assert trained.reason == "the target is reached"
    assert trained.weights["weight"].equal(hasten.train(supervised_job(epochs=3)).weights["weight"])


def test_a_target_that_is_never_reached_changes_nothing():
    trained, plain = hasten.train(supervised_job(), stopping_at(0.0)), hasten.train(supervised_job())
    assert trained.reason == plain.reason == "the planned run is complete"
    assert trained.weights["weight"].equal(plain.weights["weight"])


def test_the_weights_that_reached_it_are_kept_also_where_the_job_keeps_its_best():
    whole = losses(supervised_job())
    stop = EarlyStopping("loss", patience=5, min_delta=10.0)  # by which only the first is ever the best
    trained = hasten.train(supervised_job(stop=stop), stopping_at(whole[2]))
    assert trained.kept_step == 15


@pytest.mark.trap(46)
def test_a_run_that_has_reached_its_target_stays_ended_over_a_resume():
    whole = losses(supervised_job())
    with Run(supervised_job(), stopping_at(whole[0])) as first, Run(supervised_job(), stopping_at(whole[0])) as second:
        for batch in first.epoch_batches():
            first.step(batch)
        first.evaluate()
        assert first.finished
        assert not second.finished
        second.load_state_dict(first.state_dict())
        assert second.finished


@pytest.mark.trap(51)
def test_nan_never_reaches_the_target():
    assert hasten.train(supervised_job(loss=nan_in_evaluations), stopping_at(1e9)).steps == 30


def nan_in_evaluations(model: nn.Module, batch: Any) -> hasten.Loss:
    found = hasten.supervised(nn.functional.cross_entropy)(model, batch)
    if model.training:
        return found
    return hasten.Loss(found.total * float("nan"), found.count, prediction=found.prediction, target=found.target)


def test_it_proposes_nothing():
    setup = setup_of(nn.Linear(6, 3), ROWS, laptop(), valid=ROWS)
    assert TECHNIQUE.candidates(setup) == []


def test_without_valid_data_there_is_nothing_to_reach():
    setup = setup_of(nn.Linear(6, 3), ROWS, laptop())
    assert isinstance(TECHNIQUE.applies(setup), No)
    with pytest.raises(PlanError, match="no valid data"):
        TECHNIQUE.apply(setup, Choice(technique="stop_at", value="loss", options={"at_most": 1.0}))


@pytest.mark.parametrize(
    ("value", "options", "said", "fix"),
    [
        ("accurracy", {"at_least": 0.9}, "'accurracy' is not a result of an evaluation", "accuracy"),
        (0.9, {"at_least": 0.9}, "0.9 is not a result", "loss"),
        *(
            ("loss", options, 'the plan asks for stop_at = "loss"', "write one of at_most = … and at_least = …")
            for options in (
                {},
                {"at_most": 1.0, "at_least": 0.0},
                {"below": 1.0},
                {"at_most": True},
                {"at_most": math.nan},
            )
        ),
        ("loss", {"at_least": 0.5}, "loss has at_least, and is better when it is lower", "write at_most = 0.5"),
        ("accuracy", {"at_most": 0.5}, "accuracy has at_most, and is better when it is higher", "at_least = 0.5"),
    ],
)
def test_targets_that_no_evaluation_can_reach_are_refused_with_what_to_write(value, options, said, fix):
    with pytest.raises(PlanError) as refusal:
        applied(value, **options)
    assert said in refusal.value.what
    assert fix in refusal.value.fix


def test_the_direction_that_the_job_states_is_used():
    rules = {"stop": EarlyStopping("loss"), "keep": Best("accuracy", mode="min")}
    setup = setup_of(nn.Linear(6, 3), ROWS, laptop(), valid=ROWS, metrics={"accuracy": MulticlassAccuracy(3)}, **rules)
    TECHNIQUE.apply(setup, Choice(technique="stop_at", value="accuracy", options={"at_most": 0.5}))
    assert setup.evaluation.target == Target(metric="accuracy", value=0.5, higher_is_better=False)
