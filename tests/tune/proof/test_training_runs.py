"""One side of a pair: a run from a seed of its own is the run that training makes, in however many pieces."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau

import hasten
from hasten.errors import NonFinite
from hasten.facts.job import EarlyStopping, ExponentialAverage, Job, Schedule
from hasten.facts.plan import Plan
from hasten.tune.proof.training_runs import planned_run, train, train_on
from hasten.tune.trials.trial import Trial
from tune.jobs.loss_jobs import PLAN, Right, job, summed


def whole(
    of: Job, seed: int = 3, steps: int | None = None, metric: str | None = "loss", seconds: float = 1e9
) -> tuple[list[float], dict[str, float], int]:
    """Losses, results, and the number of pieces."""
    trial = Trial(of, Plan(), "")
    try:
        answer = train(trial, {"seed": seed, "steps": steps, "metric": metric, "seconds": seconds})
        losses, pieces = list(answer["losses"]), 1
        while answer["results"] is None:
            answer = train_on(trial, {"seconds": seconds})
            losses += answer["losses"]
            pieces += 1
        return losses, dict(answer["results"]), pieces
    finally:
        trial.close()


VARIANTS: dict[str, dict[str, Any]] = {
    "as it is": {},
    "evaluated within epochs": {"evaluate_every": 3},
    "ended within an epoch": {"epochs": None, "max_steps": 11},
    "averaged": {"average": ExponentialAverage(0.9)},
    "scheduled by evaluations": {
        "schedule": Schedule(lambda optimizer: ReduceLROnPlateau(optimizer, patience=0), "evaluation")
    },
    "stopped early": {"epochs": 40, "stop": EarlyStopping("loss", patience=1, min_delta=0.05)},
    "keeping the best": {"epochs": 5, "stop": EarlyStopping("right", patience=50)},
}


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_a_whole_run_gives_what_training_gives(changes):
    losses, results, _ = whole(job(**changes), seed=3)
    trained = hasten.train(job(**changes, seed=3))
    assert results == trained.results
    assert len(losses) == trained.steps


@pytest.mark.parametrize("changes", VARIANTS.values(), ids=VARIANTS)
def test_the_length_of_its_pieces_changes_no_bit(changes):
    losses, results, pieces = whole(job(**changes))
    assert pieces == 1
    again, results_again, pieces = whole(job(**changes), seconds=0)
    assert pieces > 10
    assert [loss.hex() for loss in again] == [loss.hex() for loss in losses]
    assert results_again == results


def test_a_seed_gives_the_same_run_again_and_another_seed_another_one():
    assert whole(job(), seed=1) == whole(job(), seed=1)
    assert whole(job(), seed=1)[0] != whole(job(), seed=2)[0]


def test_the_seeds_of_earlier_runs_in_the_process_leave_nothing_behind():
    trial = Trial(job(), Plan(), "")
    asked = {"steps": None, "metric": "loss", "seconds": 1e9}
    first, _, third = (train(trial, {"seed": seed, **asked}) for seed in (1, 2, 1))
    assert first == third
    trial.begin_anew()
    own = trial.window(4)["losses"]
    trial.close()
    assert own == whole(job(), seed=0)[0][:4]


def test_the_first_steps_are_those_of_the_whole_run_and_stop_nowhere_else():
    stops_at_once = {"epochs": 9, "evaluate_every": 1, "stop": EarlyStopping("loss", patience=1, min_delta=9.0)}
    assert len(whole(job(**stops_at_once))[0]) == 2
    losses, results, _ = whole(job(**stops_at_once), steps=5)
    assert losses == whole(job(epochs=9))[0][:5]
    assert results["loss"] > 0


def test_who_asks_for_no_evaluation_at_the_end_gets_none():
    assert whole(job(), steps=5, metric=None)[1] == {}


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
    assert not math.isfinite(whole(changed, metric="loss")[1]["right"])  # nobody is judged by it


def test_what_a_whole_run_is_can_be_asked():
    found = {}
    for name, each in {"valid": job(seed=5), "none": job(valid=None, metrics={})}.items():
        trial = Trial(each, PLAN, "")
        found[name] = planned_run(trial)
        trial.close()
    assert found == {
        "valid": {"steps": 16, "seed": 5, "metrics": {"loss": False, "right": True, "silent": None}},
        "none": {"steps": 16, "seed": 0, "metrics": {}},
    }
