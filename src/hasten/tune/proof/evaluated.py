"""A whole run of the job from a seed of its own, with the time at which the result of each evaluation was there.

It is the run that `hasten train` would make (curve.py), evaluations, schedule and early stopping included. Its seconds
are those that such a run takes from its first batch on: the wait for data, all steps, and the evaluations up to then,
because a result is there only once it was computed. What they leave out: building the job, which was done before, the
checks of a trial between two pieces of the run, and the time in which the arm is stopped for another one.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any
from weakref import WeakKeyDictionary

from hasten.facts.job import EarlyStopping
from hasten.training.evaluation.stopping import higher_is_better
from hasten.tune.proof.training_runs import Training, begun
from hasten.tune.trials.trial import Trial

NO_VALID = "without valid data there is no result whose time could be told"


def aim(trial: Trial) -> dict[str, Any]:
    """metric: the result of an evaluation by which the job is judged, that of its early stopping where it has one, else
    the loss; higher_is_better; refused: why there is none, None where there is; stops: whether the job stops early.

    Raises JobError for a metric that does not say which way is better."""
    if trial.job.valid is None:
        return {"metric": "loss", "higher_is_better": False, "refused": NO_VALID, "stops": False}
    rule = trial.stop or EarlyStopping("loss")
    rises = higher_is_better(rule, trial.job.metrics)
    return {"metric": rule.metric, "higher_is_better": rises, "refused": None, "stops": trial.stop is not None}


def evaluated_run(trial: Trial, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Begin a whole run with asked["seed"], to be judged by asked["metric"], and train its first piece."""
    _under_way.pop(trial, None)  # it holds the model of the seed before
    _under_way[trial] = _Timed(trial, begun(trial, asked["seed"], None, asked["metric"]), asked["metric"])
    return evaluated_run_on(trial, asked)


def evaluated_run_on(trial: Trial, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Train until the next evaluation, and for about asked["seconds"] at most.

    evaluated: the metric of that evaluation, None where there was none; steps, seconds: of the run so far; over:
    whether it has come to its end; result: then the metric of the weights that are kept. Raises NonFinite for a loss,
    or a result at the end, that is NaN or infinite.
    """
    return _under_way[trial].piece(asked["seconds"])


class _Timed:
    def __init__(self, trial: Trial, training: Training, metric: str) -> None:
        self._trial, self._training, self._metric = trial, training, metric
        self._seconds = 0.0

    def piece(self, most_seconds: float) -> dict[str, Any]:
        training, clock, told = self._training, time.perf_counter, len(self._training.evaluated)
        over = True
        self._trial.settle()
        begin = clock()
        for _ in training.steps:
            if len(training.evaluated) > told or clock() - begin >= most_seconds:
                over = False
                break
        self._trial.settle()
        self._seconds += clock() - begin
        training.losses()
        steps = self._trial.run.steps
        new = len(training.evaluated) > told
        return {
            "evaluated": training.evaluated[steps][self._metric] if new else None,
            "steps": steps,
            "seconds": self._seconds,
            "over": over,
            "result": training.results()[self._metric] if over else None,
        }


_under_way: WeakKeyDictionary[Trial, _Timed] = WeakKeyDictionary()
