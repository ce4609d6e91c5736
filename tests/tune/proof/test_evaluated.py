"""A whole run that is timed is the run that training makes, and its seconds are its own."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import hasten
from hasten.errors import JobError, NonFinite
from hasten.facts.job import EarlyStopping, Job
from hasten.facts.plan import Plan
from hasten.tune.proof import evaluated
from hasten.tune.proof.evaluated import aim, evaluated_run, evaluated_run_on
from hasten.tune.proof.training_runs import train
from hasten.tune.trials.trial import Trial
from tune.jobs.clocked_jobs import Clock
from tune.jobs.loss_jobs import job, summed


def timed(of: Job, seconds: float = 1e9, metric: str = "loss") -> tuple[list[tuple[int, float, float]], dict[str, Any]]:
    """Step, seconds and result of every evaluation, and the last answer."""
    trial, found = Trial(of, Plan(), ""), list[tuple[int, float, float]]()
    try:
        answer = evaluated_run(trial, {"seed": 3, "metric": metric, "seconds": seconds})
        while True:
            if answer["evaluated"] is not None:
                found.append((answer["steps"], answer["seconds"], answer["evaluated"]))
            if answer["over"]:
                return found, answer
            answer = evaluated_run_on(trial, {"seconds": seconds})
    finally:
        trial.close()


VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "evaluated within epochs": {"evaluate_every": 3},
    "ended between two evaluations": {"epochs": None, "max_steps": 11, "evaluate_every": 4},
    "stopped early": {"epochs": 40, "stop": EarlyStopping("loss", patience=1, min_delta=0.05)},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_it_evaluates_where_training_does_and_comes_to_the_same(changes):
    found, last = timed(job(**changes))
    trained = hasten.train(job(**changes, seed=3))
    assert found[-1][0] == last["steps"] == trained.steps
    assert last["result"] == trained.results["loss"]
    assert last["result"] in [result for _, _, result in found]


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_in_short_pieces_it_is_the_same_run(changes):
    whole, _ = timed(job(**changes))
    pieces, _ = timed(job(**changes), seconds=0)
    assert [(step, result) for step, _, result in pieces] == [(step, result) for step, _, result in whole]


def test_its_seconds_are_those_of_steps_and_evaluations_and_none_between_its_pieces(monkeypatch):
    clock = Clock()

    def ticking(model: Any, batch: Any) -> Any:
        clock.now += 2.0 if model.training else 0.5
        return summed(model, batch)

    monkeypatch.setattr(evaluated, "time", clock)
    trial = Trial(job(loss=ticking), Plan(), "")
    answer = evaluated_run(trial, {"seed": 3, "metric": "loss", "seconds": 0})
    assert (answer["steps"], answer["seconds"]) == (1, 2.0)
    clock.now += 100.0  # as long as the arm is stopped
    answer = evaluated_run_on(trial, {"seconds": 1e9})
    assert (answer["steps"], answer["seconds"]) == (8, 8 * 2.0 + 3 * 0.5)  # twenty rows are three batches
    assert answer["evaluated"] is not None
    trial.close()


@pytest.mark.trap(51)
def test_a_loss_that_is_not_finite_ends_it_with_its_piece():
    def infinite(model: Any, batch: Any) -> Any:
        found = summed(model, batch)
        return hasten.Loss(found.total + float("inf"), found.count)  # whose gradient is finite

    trial = Trial(job(loss=infinite, metrics={}), Plan(), "")
    with pytest.raises(NonFinite, match="the loss of step 1"):
        evaluated_run(trial, {"seed": 3, "metric": "loss", "seconds": 0})
    trial.close()


def test_its_aim_is_what_the_job_s_early_stopping_watches_and_else_the_loss():
    def of(**changes: Any) -> dict[str, Any]:
        trial = Trial(job(**changes), Plan(), "")
        try:
            return aim(trial)
        finally:
            trial.close()

    assert of() == {"metric": "loss", "higher_is_better": False, "refused": None, "stops": False}
    found = of(stop=EarlyStopping("right"))
    assert (found["metric"], found["higher_is_better"], found["stops"]) == ("right", True, True)
    assert of(stop=EarlyStopping("right", mode="min"))["higher_is_better"] is False
    assert "without valid data" in of(valid=None, metrics={})["refused"]


def test_a_metric_that_does_not_say_which_way_is_better_is_refused():
    trial = Trial(job(stop=EarlyStopping("silent")), Plan(), "")
    with pytest.raises(JobError, match="does not say whether higher is better"):
        aim(trial)
    trial.close()


def test_a_short_run_knows_no_target():
    at_once = hasten.make_plan(stop_at=("loss", {"at_most": 1e9}))
    trial = Trial(job(evaluate_every=1), at_once, "")
    asked = {"seed": 3, "metric": None, "seconds": 1e9}
    assert len(train(trial, {**asked, "steps": 5})["losses"]) == 5
    assert len(train(trial, {**asked, "steps": None})["losses"]) == 1
    trial.close()


@pytest.mark.trap(36)
def test_an_evaluation_that_is_only_timed_moves_nothing_of_the_loss_and_what_it_fills_can_be_trained_with():
    held = nn.Module()
    held.register_buffer("calls", torch.zeros(1))
    held.register_buffer("filled", None)

    def loss(model: nn.Module, batch: Any) -> Any:
        held.calls += 1
        held.filled = torch.ones(3) if held.filled is None else held.filled
        found = summed(model, batch)
        return hasten.Loss(found.total * held.filled.mean(), found.count)

    trial = Trial(job(loss=loss, metrics={}), Plan(), "")
    trial.evaluate(seconds=1e9)
    assert held.calls == 0
    assert not held.filled.is_inference()
    trial.close()
