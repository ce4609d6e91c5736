"""Runs of the job from a seed of their own, trained in an arm's process on request.

A whole run is the one that `hasten train` would make, with evaluations, schedule and early stopping. A shorter run does
not stop early. It is trained in pieces, so that progress can be shown; where a piece ends changes nothing.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any
from weakref import WeakKeyDictionary

from hasten.errors import NonFinite
from hasten.facts.job import Best, Job
from hasten.training.evaluation.stopping import higher_is_better
from hasten.tuning.trials.trial import Trial

NO_VALID = "the job has no valid data, so there is no result to measure the time to"


def planned_run(trial: Trial) -> dict[str, Any]:
    """steps: optimizer steps of the whole run, None where the data does not say; seed: the job's own; metrics: that an
    evaluation gives, each with whether higher is better, none without valid data."""
    job = trial.job
    metrics = {name: _higher_is_better(name, job) for name in ("loss", *job.metrics)} if job.valid is not None else {}
    return {"steps": trial.run.total_steps, "seed": job.seed, "metrics": metrics}


def target_metric(trial: Trial) -> dict[str, Any]:
    """metric: the result of an evaluation by which the job is judged, that of Job.keep, else of its early stopping,
    else the loss; higher_is_better; refused: why there is none, None where there is.

    Raises JobError for a metric that does not say which way is better."""
    if trial.job.valid is None:
        return {"metric": "loss", "higher_is_better": False, "refused": NO_VALID}
    rule = replace(trial.job, stop=trial.stop, keep=trial.keep).keeps or Best("loss")
    rises = higher_is_better(rule, trial.job.metrics)
    return {"metric": rule.metric, "higher_is_better": rises, "refused": None}


def train(trial: Trial, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Begin a run with asked["seed"], and train its first piece, as train_on() does. steps, metric: see
    loss_proof.RunLength."""
    _running.pop(trial, None)  # it holds the model of the seed before
    _running[trial] = _Training(trial, asked["seed"], asked["steps"], asked["metric"])
    return train_on(trial, asked)


def train_on(trial: Trial, asked: Mapping[str, Any]) -> dict[str, Any]:
    """Train until the next evaluation, and for about asked["seconds"] at most, one optimizer step at least.

    losses: the mean of every optimizer step since the last answer; evaluated: the metric of an evaluation since then,
    None where there was none or nobody asked for a metric; steps, seconds: of the run so far; results: of the
    evaluation that counts, None as long as the run is not over; first_step: see loss_proof.Trained. Raises
    NonFinite for a loss, or the metric at the end, that is NaN or infinite.
    """
    return _running[trial].piece(asked["seconds"])


class _Training:
    def __init__(self, trial: Trial, seed: int, most_steps: int | None, metric: str | None) -> None:
        job = trial.job
        trial.job = replace(job, seed=seed)
        if most_steps is None:
            trial.job = replace(trial.job, stop=trial.stop, keep=trial.keep)
        try:
            trial.restart()
        finally:
            trial.job = job  # what is asked of the trial next begins with its own seed
        if most_steps is not None:
            trial.run.built.ending = None
        self._trial, self._run, self._metric = trial, trial.run, metric
        self._most = math.inf if most_steps is None else most_steps
        self._reported, self._seconds = 0, 0.0
        self._evaluated: dict[int, Mapping[str, float]] = {}  # by the step of the evaluation
        self._steps = self._all_steps()

    def piece(self, most_seconds: float) -> dict[str, Any]:
        clock, before, over = time.perf_counter, len(self._evaluated), True
        self._trial.settle()
        begin = clock()
        for _ in self._steps:
            if len(self._evaluated) > before or clock() - begin >= most_seconds:
                over = False
                break
        self._trial.settle()
        self._seconds += clock() - begin
        is_new, metric = len(self._evaluated) > before, self._metric
        return {
            "losses": self._losses(),
            "evaluated": None if metric is None or not is_new else self._evaluated[self._run.steps][metric],
            "steps": self._run.steps,
            "seconds": self._seconds,
            "results": self._results() if over else None,
            "first_step": {},
        }

    def _all_steps(self) -> Iterator[None]:
        """One item for every optimizer step and evaluation; the run is over when it ends."""
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
        if self._run.steps not in self._evaluated:
            self._evaluated[self._run.steps] = self._run.evaluate().results

    def _losses(self) -> list[float]:
        found = [window.mean for window in self._run.losses.drain()]
        for number, loss in enumerate(found, start=self._reported + 1):
            if not math.isfinite(loss):
                raise NonFinite(f"the loss of step {number} is {loss}", where=f"seed {self._run.job.seed}")
        self._reported += len(found)
        return found

    def _results(self) -> Mapping[str, float]:
        """Of the weights that are kept; none where nothing was evaluated."""
        run = self._run
        run.built.step.skips.settle()  # raises NonFinite where the last update was not finite
        kept = run.steps if run.built.best is None else run.built.best.step
        found = self._evaluated.get(kept, {})
        if self._metric is not None and not math.isfinite(found[self._metric]):
            where = f"seed {run.job.seed}"
            raise NonFinite(f"{self._metric} of the evaluation at step {kept} is {found[self._metric]}", where=where)
        return found


_running: WeakKeyDictionary[Trial, _Training] = WeakKeyDictionary()


def _higher_is_better(name: str, job: Job) -> bool | None:
    """None where the metric does not say."""
    if name == "loss":
        return False
    return getattr(job.metrics[name], "higher_is_better", None)
