"""A prepared run, and the calls that advance it. Batches are microbatches, already on the device.

with hasten.prepare(job, plan) as run:
    for batch in run.batches():
        loss = run.step(batch)
    run.evaluate()
"""

from __future__ import annotations

import math
from collections.abc import Generator, Mapping
from typing import Any, Self

from torch import Tensor

from hasten.data.cache.cached_source import Watcher
from hasten.data.loading.batch_loader import TrainLoader
from hasten.errors import JobError
from hasten.facts.job import Job
from hasten.facts.plan import Plan
from hasten.training.build import build
from hasten.training.evaluate import Evaluation


class Run:
    """A prepared run: its batches, its step, its evaluation and its state, for a loop of your own.

    Use it as a context manager, or close() it: it holds process-wide settings.

    built: all parts of the run; the attributes below are those that callers need most.
    losses: of all windows since they were last drained, on the device.
    """

    def __init__(self, job: Job, plan: Plan | None = None, *, name: str = "", watcher: Watcher | None = None) -> None:
        self.job, self.plan, self.name = job, plan or Plan(), name
        self.built = built = build(job, self.plan, name=name, watcher=watcher)
        self.setup, self.device, self.grid, self.ranks = built.setup, built.device, built.grid, built.grid.all
        self.model, self.optimizers, self.schedule = built.model, built.optimizers, built.schedule
        self.average, self.stopping, self.evaluator = built.average, built.stopping, built.evaluator
        self.total_steps, self.total_epochs = built.total_steps, built.total_epochs
        self.compiling, self.notices, self.losses = built.compiling, built.notices, built.step.losses

    def batches(self) -> Generator[Any]:
        """All microbatches that are left of the planned run, on the device."""
        while not self.finished:
            for batch in self.epoch_batches():
                yield batch
                if self.window_closed and self.finished:
                    break

    def epoch_batches(self) -> Generator[Any]:
        """The microbatches that are left of the present epoch, on the device; the epoch is over when they are. A window
        that was not completed starts again."""
        self.built.windows.start_pass()
        yield from self.built.batches.epoch(self.steps + 1)
        self.built.step.skips.settle()
        self.schedule.after_epoch()

    def skip_to_next_epoch(self) -> None:
        """Skip the rest of the epoch."""
        self.built.batches.position.skip_to_next_epoch()

    def step(self, batch: Any) -> Tensor:
        """Forward and backward of the batch handed out last, and the update when it closes a step.

        Returns the mean loss, detached, on the device; in a pipeline the window's, and NaN before its last microbatch.
        Raises NonFinite for a step that is refused; the run is then as the step before left it, buffers and declared
        state if keep_window_starts() was called."""
        return self.built.windows.take(batch)

    def evaluate(self) -> Evaluation:
        """Evaluate, and let schedule, early stopping and Job.keep use the results. The average's weights are
        evaluated, else those of the optimizers' eval(), else the present ones. Training mode is restored."""
        if (evaluator := self.evaluator) is None:
            raise JobError("valid", "is not given", "give the data to evaluate on: valid=…")
        built = self.built
        built.step.skips.settle()
        built.state.settle()
        with built.result.in_model():
            with built.declared.preserved():
                evaluation = evaluator()
            for rule in (self.stopping, built.keeping):
                if rule is not None:
                    rule.observe(evaluation.results, self.steps)
            reached = built.ending is not None and built.ending.observe(evaluation.results, self.steps)
            if reached or self.is_best:
                built.result.keep(self.steps)
        self.schedule.after_evaluation(evaluation.results)
        return evaluation

    # ── where the run is ────────────────────────────────────────────────────────────────────────────────────────────

    @property
    def steps(self) -> int:
        """Optimizer steps attempted so far, skipped ones included."""
        return self.built.step.skips.attempted

    @property
    def epoch(self) -> int:
        """Of the next optimizer step, from 0 on."""
        return self.built.batches.position.epoch

    @property
    def window_closed(self) -> bool:
        """Whether the batch handed out last was the last microbatch of its optimizer step."""
        return self.built.batches.present.last

    @property
    def is_best(self) -> bool:
        """Whether the evaluation at this step was the best so far, by Job.keep, else by Job.stop."""
        best = self.built.best
        return best is not None and best.step == self.steps and not math.isnan(best.value)

    @property
    def finished(self) -> bool:
        """Whether the planned end is reached, or a rule of stopping has ended the run."""
        job = self.job
        if any(each is not None and each.over for each in (self.stopping, self.built.ending)):
            return True
        if job.max_steps is not None and self.built.step.skips.applied_reach(job.max_steps):
            return True
        return job.epochs is not None and self.epoch >= job.epochs

    @property
    def loader(self) -> TrainLoader:
        return self.built.batches.loader

    @property
    def gradient_norm(self) -> float | None:
        """Of the last step, before clipping; None where none was measured. Waits for the device."""
        norm = self.built.step.gradient_norm
        return None if norm is None else norm.item()

    # ── results and state ───────────────────────────────────────────────────────────────────────────────────────────

    def weights(self) -> dict[str, Tensor]:
        """The result, on the host, for the job's own model: see ResultWeights."""
        self.built.step.skips.settle()
        return self.built.result.get(self.steps)

    def state_dict(self) -> dict[str, Any]:
        """Everything that the next step depends on, taken between two optimizer steps."""
        return self.built.state.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state of a run of the same job and plan. Raises Misconfigured for one that does not fit."""
        self.built.state.load_state_dict(state)
        self.built.step.window.reference = self.built.batches.items_per_microbatch

    def keep_window_starts(self) -> None:
        """From now on store how each window began, so that a failed one can be restored."""
        built = self.built
        built.rollback.take_snapshots(self.model, built.declared, deferred=built.step.skips.deferred)

    def close(self) -> None:
        """End loader workers and restore process-wide settings. The model and its weights stay usable."""
        self.built.resources.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()
