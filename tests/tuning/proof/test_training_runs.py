"""A run from a seed of its own is the run that training makes, in however many pieces, and its seconds are its own."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import ReduceLROnPlateau

import hasten
from hasten.errors import JobError, NonFinite
from hasten.facts.job import Best, EarlyStopping, ExponentialAverage, Job, Schedule
from hasten.facts.plan import Plan
from hasten.tuning.proof import training_runs
from hasten.tuning.proof.training_runs import planned_run, target_metric, train, train_on
from hasten.tuning.trials.trial import Trial
from tuning.jobs.clocked_jobs import Clock
from tuning.jobs.loss_jobs import PLAN, Right, job, summed


@contextmanager
def trial_of(of: Job, plan: Plan | None = None) -> Iterator[Trial]:
    trial = Trial(of, plan or Plan(), "")
    try:
        yield trial
    finally:
        trial.close()


class Run(NamedTuple):
    losses: list[float]
    results: dict[str, float]
    evaluations: list[tuple[int, float]]  # step and metric
    pieces: int


def whole(
    of: Job,
    seed: int = 3,
    steps: int | None = None,
    metric: str | None = "loss",
    seconds: float = 1e9,
    plan: Plan | None = None,
) -> Run:
    losses, evaluations, pieces = list[float](), list[tuple[int, float]](), 1
    with trial_of(of, plan) as trial:
        answer = train(trial, {"seed": seed, "steps": steps, "metric": metric, "seconds": seconds})
        while True:
            losses += answer["losses"]
            if answer["evaluated"] is not None:
                evaluations.append((answer["steps"], answer["evaluated"]))
            if answer["results"] is not None:
                return Run(losses, dict(answer["results"]), evaluations, pieces)
            answer = train_on(trial, {"seconds": seconds})
            pieces += 1


VARIANTS: dict[str, dict[str, Any]] = {
    "baseline": {},
    "evaluated within epochs": {"evaluate_every": 3},
    "ended between two evaluations": {"epochs": None, "max_steps": 11, "evaluate_every": 4},
    "averaged": {"average": ExponentialAverage(0.9)},
    "scheduled by evaluations": {
        "schedule": Schedule(lambda optimizer: ReduceLROnPlateau(optimizer, patience=0), "evaluation")
    },
    "stopped early": {"epochs": 40, "stop": EarlyStopping("loss", patience=1, min_delta=0.05)},
    "keeping the best": {"epochs": 5, "keep": Best("right"), "stop": EarlyStopping("loss", patience=50)},
}

OFTEN = ("ended between two evaluations", "scheduled by evaluations", "keeping the best")


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(changes, id=name, marks=() if name in OFTEN else pytest.mark.proof)
        for name, changes in VARIANTS.items()
    ],
)
def test_a_whole_run_gives_what_training_gives_and_the_length_of_its_pieces_changes_no_bit(changes):
    found = whole(job(**changes), seed=3)
    trained = hasten.train(job(**changes, seed=3))
    assert found.results == trained.results
    assert len(found.losses) == trained.steps
    assert found.results["loss"] in [result for _, result in found.evaluations]
    short = whole(job(**changes), seconds=0)
    assert short.pieces > 10
    assert [loss.hex() for loss in short.losses] == [loss.hex() for loss in found.losses]
    assert short[1:3] == found[1:3]


def test_the_seeds_of_earlier_runs_in_the_process_leave_nothing_behind():
    asked = {"steps": None, "metric": None, "seconds": 1e9}
    with trial_of(job()) as trial:
        first, _, third = (train(trial, {"seed": seed, **asked})["losses"] for seed in (1, 2, 1))
        trial.restart()
        own = trial.window(4)["losses"]
    assert first == third
    assert own == whole(job(), seed=0).losses[:4]


def test_the_first_steps_are_those_of_the_whole_run_and_stop_nowhere_else():
    stops_at_once = {"epochs": 9, "evaluate_every": 1, "stop": EarlyStopping("loss", patience=1, min_delta=9.0)}
    assert len(whole(job(**stops_at_once)).losses) == 2
    found = whole(job(**stops_at_once), steps=5)
    assert found.losses == whole(job(epochs=9)).losses[:5]
    assert found.results["loss"] > 0
    assert whole(job(), steps=5, metric=None).results == {}


@pytest.mark.trap(51)
@pytest.mark.parametrize("at", [1, 6])
def test_a_loss_that_is_not_finite_under_finite_gradients_is_never_a_value(at):
    seen = iter(range(1, 1000))

    def loss(model, batch):
        found = summed(model, batch)
        return hasten.Loss(found.total + (torch.nan if next(seen) == at else 0.0), found.count)

    with pytest.raises(NonFinite, match=f"the loss of step {at} is nan"):
        whole(job(loss=loss, valid=None, metrics={}), metric=None)


@pytest.mark.trap(51)
@pytest.mark.parametrize("becomes", [math.nan, math.inf])
def test_a_metric_that_is_not_finite_is_never_a_value(becomes):
    changed = job(metrics={"right": Right(becomes)})
    with pytest.raises(NonFinite, match="right of the evaluation at step 16"):
        whole(changed, metric="right")
    assert not math.isfinite(whole(changed, metric="loss").results["right"])  # the run is not judged by it


def test_what_a_whole_run_is_can_be_asked():
    found = {}
    for name, each in {"valid": job(seed=5), "none": job(valid=None, metrics={})}.items():
        with trial_of(each, PLAN) as trial:
            found[name] = planned_run(trial)
    assert found == {
        "valid": {"steps": 16, "seed": 5, "metrics": {"loss": False, "right": True, "silent": None}},
        "none": {"steps": 16, "seed": 0, "metrics": {}},
    }


def test_its_seconds_are_those_of_steps_and_evaluations_and_none_between_its_pieces(monkeypatch):
    clock = Clock()

    def ticking(model: Any, batch: Any) -> Any:
        clock.now += 2.0 if model.training else 0.5
        return summed(model, batch)

    monkeypatch.setattr(training_runs, "time", clock)
    with trial_of(job(loss=ticking)) as trial:
        answer = train(trial, {"seed": 3, "steps": None, "metric": "loss", "seconds": 0})
        assert (answer["steps"], answer["seconds"]) == (1, 2.0)
        clock.now += 100.0  # as long as the arm is stopped
        answer = train_on(trial, {"seconds": 1e9})
    assert (answer["steps"], answer["seconds"]) == (8, 8 * 2.0 + 3 * 0.5)  # twenty rows are three batches
    assert answer["evaluated"] is not None


def metric_of(**changes: Any) -> dict[str, Any]:
    with trial_of(job(**changes)) as trial:
        return target_metric(trial)


def test_its_target_metric_is_what_the_job_keeps_or_stops_by_and_else_the_loss():
    assert metric_of() == {"metric": "loss", "higher_is_better": False, "refused": None}
    found = metric_of(stop=EarlyStopping("right"))
    assert (found["metric"], found["higher_is_better"]) == ("right", True)
    assert metric_of(stop=EarlyStopping("right", mode="min"))["higher_is_better"] is False
    assert metric_of(stop=EarlyStopping("loss"), keep=Best("right"))["metric"] == "right"
    assert "no valid data" in metric_of(valid=None, metrics={})["refused"]
    with pytest.raises(JobError, match="does not say whether higher is better"):
        metric_of(stop=EarlyStopping("silent"))


@pytest.mark.trap(36)
def test_an_evaluation_that_is_only_timed_leaves_declared_state_alone():
    counter = nn.Module()
    counter.register_buffer("calls", torch.zeros(1))

    def loss(model: nn.Module, batch: Any) -> Any:
        counter.calls += 1
        return summed(model, batch)

    with trial_of(job(loss=loss, metrics={}, state={"counter": counter})) as trial:
        trial.evaluate(seconds=1e9)
        assert counter.calls == 0
