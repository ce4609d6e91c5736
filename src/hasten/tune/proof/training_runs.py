"""A run of the job from a seed of its own, trained piece by piece: one side of a pair whose losses are compared.

The run is the one that `hasten train` would make: it evaluates where that does, because a schedule may move on what an
evaluation says, and a whole run obeys early stopping and counts for the evaluation whose weights it keeps. A run of
fewer steps is no such thing, and stops nowhere else.

It is trained in pieces so that whoever waits can say how far it has come. Where a piece ends changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from hasten.errors import NonFinite
from hasten.facts.job import Job
from hasten.training.evaluation.stopping import Ending
from hasten.training.run import Run
from hasten.tune.trials.trial import Trial


def planned_run(trial: Trial) -> dict[str, Any]:
    """steps: optimizer steps of the whole run, None where the data does not tell; seed: the job's own; metrics: that an
    evaluation gives, each with whether higher is better, none without valid data."""
    job = trial.job
    metrics = {name: _higher_is_better(name, job) for name in ("loss", *job.metrics)} if job.valid is not None else {}
    return {"steps": trial.run.total_steps, "seed": job.seed, "metrics": metrics}


def train(trial: Trial, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Begin a run with asked["seed"], and train its first piece, as train_on() does.

    steps: optimizer steps to take, None for the whole planned run; metric: what the last evaluation must give, None for
    no evaluation at the end.
    """
    _under_way.pop(trial, None)  # it holds the model of the seed before
    _under_way[trial] = begun(trial, asked["seed"], asked["steps"], asked["metric"])
    return train_on(trial, asked)


def begun(trial: Trial, seed: int, steps: int | None, metric: str | None) -> Training:
    """A run from this seed before its first step; of so many steps, None for the whole planned run."""
    job, stop = trial.job, trial.stop if steps is None else None
    trial.job = replace(job, seed=seed, stop=stop)
    try:
        trial.begin_anew()
    finally:
        trial.job = job  # what is asked of the trial next begins with its own seed
    if steps is not None:
        trial.run.built.ending = Ending(None)
    return Training(trial.run, steps, metric)


def train_on(trial: Trial, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Train for about asked["seconds"], one optimizer step at least.

    losses: the mean of every optimizer step since the last answer; results: of the evaluation that counts, None as long
    as the run is not over. Raises NonFinite for a loss, or a metric that is asked for, which is NaN or infinite.
    """
    training = _under_way[trial]
    until = time.monotonic() + asked["seconds"]
    over = True
    for _ in training.steps:
        if time.monotonic() >= until:
            over = False
            break
    return {"losses": training.losses(), "results": training.results() if over else None}


class Training:
    """steps: one turn for every optimizer step and evaluation that is left; the run is over when it ends. evaluated:
    the results of every evaluation so far, by the step at which it was."""

    def __init__(self, run: Run, most_steps: int | None, metric: str | None) -> None:
        self._run, self._metric = run, metric
        self._most = math.inf if most_steps is None else most_steps
        self._told = 0
        self.evaluated: dict[int, Mapping[str, float]] = {}
        self.steps = self._steps()

    def _steps(self) -> Iterator[None]:
        run, every = self._run, self._run.job.evaluate_every
        while not self._is_over:
            for batch in run.epoch_batches():
                run.step(batch)
                if not run.window_closed:
                    continue
                if every is not None and run.steps % every == 0:
                    self._evaluate()
                yield
                if self._is_over:
                    break
            else:
                if every is None and run.job.valid is not None:
                    self._evaluate()
                    yield
        if self._metric is not None:
            self._evaluate()

    @property
    def _is_over(self) -> bool:
        return self._run.finished or self._run.steps >= self._most

    def _evaluate(self) -> None:
        if self._run.steps not in self.evaluated:
            self.evaluated[self._run.steps] = self._run.evaluate().results

    def losses(self) -> list[float]:
        """Of all optimizer steps since the last call. Raises NonFinite where one is not finite."""
        found = [window.mean for window in self._run.losses.drain()]
        for number, loss in enumerate(found, start=self._told + 1):
            if not math.isfinite(loss):
                raise NonFinite(f"the loss of step {number} is {loss}", where=f"seed {self._run.job.seed}")
        self._told += len(found)
        return found

    def results(self) -> Mapping[str, float]:
        """Of the kept weights, once the run is over; none where nothing was evaluated."""
        run = self._run
        run.built.step.skips.settle()  # raises NonFinite where the last update was not finite
        kept = run.steps if run.stopping is None else run.stopping.best_step
        found = self.evaluated.get(kept, {})
        if self._metric is not None and not math.isfinite(found[self._metric]):
            where = f"seed {run.job.seed}"
            raise NonFinite(f"{self._metric} of the evaluation at step {kept} is {found[self._metric]}", where=where)
        return found


_under_way: WeakKeyDictionary[Trial, Training] = WeakKeyDictionary()


def _higher_is_better(name: str, job: Job) -> bool | None:
    """None where the metric does not say."""
    if name == "loss":
        return False
    return getattr(job.metrics[name], "higher_is_better", None)
