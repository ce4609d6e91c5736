"""The whole run: epochs, log lines, evaluations, early stopping, checkpoints, and the result at the end."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from hasten.data.loading.data_errors import is_out_of_memory
from hasten.facts.events import Evaluated, Receiver, Resumed, Started
from hasten.facts.job import Job
from hasten.training.failures.smaller_microbatches import halve_microbatches
from hasten.training.reporting.log_lines import LogLines
from hasten.training.run import Run
from hasten.training.saving.checkpointing import Checkpointing, Origin
from hasten.training.saving.recovery import of_known_form
from hasten.training.state.sharded_state import to_save
from hasten.training.state.torch_tensors import make_buffers


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a run gave.

    weights: the kept weights, on the host, in the form of the job's own model.
    results: "loss" and the metrics, of the evaluation that the kept weights had; empty without valid data.
    reason: why it ended, in words.
    steps, epochs: how far the run came: optimizer steps attempted, and whole epochs.
    seconds: of the whole run, evaluations and saves included.
    kept_step: after which optimizer step the kept weights were.
    skipped_updates: steps whose gradients were not finite, and that changed nothing.
    """

    job: Job
    weights: Mapping[str, Tensor]
    results: Mapping[str, float]
    reason: str
    steps: int
    epochs: int
    seconds: float
    kept_step: int
    skipped_updates: int

    def model(self) -> nn.Module:
        """The job's own model with the kept weights, on the host, in evaluation mode."""
        model = self.job.model()
        make_buffers(model, self.weights)
        model.load_state_dict(dict(self.weights))
        return model.eval()


def train_run(run: Run, receiver: Receiver, keeping: Checkpointing | None = None) -> Result:
    """Train to the planned end or an early stop; every event goes to `receiver`, which stays open.

    keeping: saves checkpoints, and says where the run resumes; None begins the run and saves no checkpoint.
    Raises KeyboardInterrupt, and Terminated, when a signal asked for the end and the run is saved.
    """
    return _Loop(run, receiver, keeping).train()


class _Loop:
    def __init__(self, run: Run, receiver: Receiver, keeping: Checkpointing | None) -> None:
        self._run, self._receiver, self._keeping = run, receiver, keeping
        self._lines = LogLines(run, receiver)
        self._results: dict[int, Mapping[str, float]] = {}
        self._evaluated_at, self._epoch = -1, 0
        origin = keeping.origin if keeping is not None else None
        if origin is not None and origin.states is not None:
            with of_known_form(origin.checkpoint):
                self._resume(origin.states["loop"], origin.states["log"])
        run.keep_window_starts()  # for a window that does not fit into memory
        if keeping is not None and run.built.evaluation_data is not None:
            run.built.evaluation_data.check_stop = keeping.check_stop

    def train(self) -> Result:
        self._announce(self._keeping.origin if self._keeping is not None else None)
        try:
            self._train_epochs()
            return self._finish()
        except BaseException as error:
            self._lines.log_before(error)
            if self._keeping is not None:
                self._keeping.save_after(error, self._run, self._state)
            raise

    def _train_epochs(self) -> None:
        run = self._run
        self._epoch = run.epoch - run.built.batches.position.is_between_epochs
        if self._evaluation_is_due():  # the run resumes from before it
            self._evaluate(self._epoch)
        while not run.finished:
            self._epoch = run.epoch
            self._train_epoch()
            if run.job.evaluate_every is None:
                self._evaluate(self._epoch)

    def _evaluation_is_due(self) -> bool:
        """Whether the last step has an evaluation that was not made."""
        run, every = self._run, self._run.job.evaluate_every
        if run.steps in (0, self._evaluated_at) or run.finished:  # a finished run is evaluated anyway
            return False
        return run.built.batches.position.is_between_epochs if every is None else run.steps % every == 0

    def _train_epoch(self) -> None:
        while True:
            try:
                self._train_windows()
                return
            except Exception as error:
                if not is_out_of_memory(error) or not self._run.built.windows.restore():
                    raise
                notice = halve_microbatches(self._run, error)
            # Outside the except block: the traceback would keep the failed batch's tensors alive.
            self._lines.notices([notice])

    def _train_windows(self) -> None:
        run, job, steps_left, keeping = self._run, self._run.job, self._steps_until_due(), self._keeping
        for batch in run.epoch_batches():
            run.step(batch)
            if not run.window_closed:
                continue
            steps_left -= 1
            if not steps_left:
                if run.steps % job.log_every == 0:
                    self._lines.add(self._epoch)
                if job.evaluate_every is not None and run.steps % job.evaluate_every == 0:
                    self._evaluate(self._epoch)
                if run.finished:
                    return
                steps_left = self._steps_until_due()
            if keeping is not None and keeping.due(run.steps):
                keeping.after_step(run, self._state)

    def _steps_until_due(self) -> int:
        """How many steps lie before anything but training is to be done: until then the loop only counts."""
        steps, job = self._run.steps, self._run.job
        marks = [steps - steps % every + every for every in (job.log_every, job.evaluate_every) if every is not None]
        if job.max_steps is not None:
            marks.append(max(job.max_steps, steps + 1))  # updates that were skipped make a run longer
        return min(marks) - steps

    def _announce(self, origin: Origin | None) -> None:
        run, fingerprint = self._run, self._run.built.fingerprint
        started = Started(
            job=run.name,
            machine=run.setup.machine.summary,
            device=str(run.device),
            parameters=fingerprint.parameters,
            samples=fingerprint.samples,
            batch_size=run.built.batch_size,
            microbatch_size=run.loader.microbatch_size or run.built.batch_size,  # may be smaller than the plan's by now
            total_steps=run.total_steps,
            total_epochs=run.total_epochs,
            choices=tuple(str(item.choice) for item in run.plan.choices),
        )
        if origin is None or origin.begins_log:
            self._receiver.log(started)
            self._lines.notices(run.notices)
        if origin is not None:
            path = str(origin.checkpoint) if origin.checkpoint is not None else None
            notices = (*origin.notices, *(() if origin.begins_log else run.notices))
            self._receiver.log(Resumed(started=started, step=run.steps, checkpoint=path, notices=notices))

    # ── the state ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _state(self) -> dict[str, Any]:
        """Of the run and of this loop, taken between two steps; log lines that wait for their loss are logged before.
        Raises NonFinite for weights that are not finite."""
        run = self._run
        run.built.step.check_weights()
        self._lines.read_before_saving()
        kept = {run.built.result.step, self._evaluated_at} & self._results.keys()
        state = {
            "run": run.state_dict(),
            "weights": run.built.result.to_save(),
            "loop": {
                "evaluated_at": self._evaluated_at,
                "results": {step: self._results[step] for step in kept},
                "lines": self._lines.state_dict(),
            },
            "log": {"seconds": time.monotonic() - self._lines.start},
        }
        return to_save(state, run.built.sharding)

    def _resume(self, loop: Mapping[str, Any], log: Mapping[str, Any]) -> None:
        self._evaluated_at, self._results = loop["evaluated_at"], loop["results"]
        self._lines.load_state_dict(loop["lines"])
        self._lines.start -= log["seconds"]

    # ── evaluations ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _evaluate(self, epoch: int) -> None:
        run = self._run
        if run.job.valid is None or self._evaluated_at == run.steps:
            return
        self._lines.add(epoch)
        self._lines.read()
        assert run.evaluator is not None  # of a job with valid data
        size_before = run.evaluator.batch_size
        try:
            evaluation = run.evaluate()
        except KeyboardInterrupt as interrupt:
            if self._keeping is not None:
                self._keeping.stop_in_evaluation(interrupt, run, self._state)
            raise
        self._evaluated_at = run.steps
        self._results[run.steps] = evaluation.results
        if evaluation.batch_size != size_before:
            text = f"evaluation batches of {size_before} did not fit into memory; {evaluation.batch_size} do"
            self._lines.notices([text])
        self._receiver.log(
            Evaluated(
                step=run.steps,
                epoch=epoch,
                results=evaluation.results,
                seconds=evaluation.seconds,
                batch_size=evaluation.batch_size,
                best=run.is_best,
            )
        )
        self._lines.restart()
        if self._keeping is not None:
            self._keeping.after_evaluation(run, self._state)

    def _finish(self) -> Result:
        run, built = self._run, self._run.built
        self._evaluate(self._epoch)
        self._lines.add(self._epoch)
        self._lines.read()
        built.step.check_weights()
        built.state.settle()
        if self._keeping is not None:
            self._keeping.at_the_end(run, self._state)
        if run.compiling is not None:
            self._lines.notices([run.compiling.summary()])
        weights = run.weights()
        return Result(
            job=run.job,
            weights=weights,
            results=self._results.get(built.result.step, {}),
            reason=_reason(run),
            steps=run.steps,
            epochs=built.batches.position.whole_epochs,
            seconds=time.monotonic() - self._lines.start,
            kept_step=built.result.step,
            skipped_updates=built.step.skips.skipped,
        )


def _reason(run: Run) -> str:
    if run.built.ending is not None and run.built.ending.over:
        return "the target is reached"
    stopped = run.stopping is not None and run.stopping.over
    return "stopped early" if stopped else "the planned run is complete"
