"""The whole run: epochs, log lines, evaluations, early stopping, checkpoints, and the result at the end.

Between two reads of the device the loop only counts steps. A log line that is due earlier holds what the host knows
then, and waits for its loss.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor, nn

from hasten.data.loading.data_errors import is_out_of_memory
from hasten.errors import NonFinite
from hasten.facts.events import Evaluated, Noticed, Receiver, Resumed, Started, Trained
from hasten.facts.job import Job
from hasten.parallel.collectives import gather_over_ranks
from hasten.training.failures.smaller_microbatches import halve_microbatches
from hasten.training.reporting.line_clock import LineClock
from hasten.training.reporting.spikes import Spikes
from hasten.training.run import Run
from hasten.training.saving.checkpointing import Checkpointing, Origin
from hasten.training.saving.recovery import of_known_form
from hasten.training.state.made_buffers import make_buffers
from hasten.training.state.sharded_state import to_save
from hasten.training.step_parts.loss_record import WindowLoss, mean_loss
from hasten.training.step_parts.losses import check_count
from hasten.training.step_parts.summed_loss import SUMMED

_NAMED = 5  # of many parameters


@dataclass(frozen=True, kw_only=True, slots=True)
class Result:
    """What a run gave.

    weights: the kept weights, on the host, in the form of the job's own model.
    results: of the evaluation that the kept weights had; empty without valid data.
    reason: why it ended, in words.
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

    keeping: saves checkpoints, and says where the run goes on; None begins it and saves none.
    Raises KeyboardInterrupt, and Terminated, when a signal asked for the end and the run is saved.
    """
    return _Loop(run, receiver, keeping).train()


class _Loop:
    def __init__(self, run: Run, receiver: Receiver, keeping: Checkpointing | None) -> None:
        self._run, self._receiver, self._keeping = run, receiver, keeping
        self._start = time.monotonic()
        self._spikes = Spikes()
        self._due: list[tuple[int, Trained]] = []  # log lines without their loss yet, and how many windows each covers
        self._ready: list[tuple[list[WindowLoss], Trained]] = []  # lines with it, that are about to be sent
        self._results: dict[int, Mapping[str, float]] = {}
        self._evaluated_at = -1
        self._skips_told = self._epoch = 0
        self._first_step_told = False
        origin = keeping.origin if keeping is not None else None
        if origin is not None and origin.states is not None:
            with of_known_form(origin.checkpoint):
                self._go_on(origin.states["loop"], origin.states["log"])
        self._line = LineClock(run, self._start)
        run.keep_window_starts()  # for a window that does not fit into memory
        if keeping is not None and run.built.evaluation_data is not None:
            run.built.evaluation_data.check_stop = keeping.check_stop

    def train(self) -> Result:
        self._announce(self._keeping.origin if self._keeping is not None else None)
        try:
            self._train_epochs()
            return self._finish()
        except BaseException as error:
            self._tell_what_waits(error)
            self._send_what_waits(error)
            if self._keeping is not None:
                self._keeping.save_after(error, self._run, self._state)
            raise

    def _tell_what_waits(self, error: BaseException) -> None:
        """The samples that were replaced, before `error` ends the run; with it, where they cannot be logged."""
        ledger = self._run.loader.ledger
        try:
            if self._run.ranks.leads:
                self._tell(ledger.unreported())
        except Exception as second:
            error.add_note(f"what was to be told is told here instead: {type(second).__name__}: {second}")
        for text in ledger.unreported():
            error.add_note(text)

    def _send_what_waits(self, error: BaseException) -> None:
        """The log lines that wait for their loss, before `error` ends the run; it stays the one that is told."""
        # Losses of many ranks are added up by all of them, and the others are elsewhere.
        if self._run.ranks.many:
            return
        why = None
        for _ in range(len(self._due) + len(self._ready)):  # a receiver that raises has got one of them
            try:
                self._send_lines()
            except Exception as second:
                why = second
        if why is not None:
            error.add_note(f"log lines that waited for their loss are lost: {type(why).__name__}: {why}")

    def _train_epochs(self) -> None:
        run = self._run
        self._epoch = run.epoch - run.built.batches.position.is_between_epochs
        if self._evaluation_is_due():  # the run goes on from before it
            self._evaluate(self._epoch)
        while not run.finished:
            self._epoch = run.epoch
            self._train_epoch()
            if run.job.evaluate_every is None:
                self._evaluate(self._epoch)

    def _evaluation_is_due(self) -> bool:
        """Whether the step that was taken last has an evaluation, and it was not made."""
        run, every = self._run, self._run.job.evaluate_every
        if run.steps in (0, self._evaluated_at) or run.finished:  # when all is done, one comes anyway
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
                told = halve_microbatches(self._run, error)
            # Outside the except block: the traceback would keep the failed batch's tensors alive.
            self._receiver.log(Noticed(text=told))

    def _train_windows(self) -> None:
        run, job, steps_left, keeping = self._run, self._run.job, self._steps_until_due(), self._keeping
        for batch in run.epoch_batches():
            run.step(batch)
            if not run.window_closed:
                continue
            steps_left -= 1
            if not steps_left:
                if run.steps % job.log_every == 0:
                    self._log(self._epoch)
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
        run, setup = self._run, self._run.setup
        started = Started(
            job=run.name,
            machine=setup.machine.summary,
            device=str(run.device),
            parameters=run.built.fingerprint.parameters,
            samples=run.built.fingerprint.samples,
            batch_size=run.built.batch_size,
            microbatch_size=run.loader.microbatch_size
            or run.built.batch_size,  # that may be smaller than the plan's by now
            total_steps=run.total_steps,
            total_epochs=run.total_epochs,
            choices=tuple(str(item.choice) for item in run.plan.choices),
        )
        if origin is None or origin.begins_log:
            self._receiver.log(started)
            self._tell(run.notices)
        if origin is not None:
            path = str(origin.checkpoint) if origin.checkpoint is not None else None
            notices = (*origin.notices, *(() if origin.begins_log else run.notices))
            self._receiver.log(Resumed(started=started, step=run.steps, checkpoint=path, notices=notices))

    # ── carrying on ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _state(self) -> dict[str, Any]:
        """Of the run and of this loop, taken between two steps; log lines that wait for their loss are sent before.
        Raises NonFinite for weights that are not worth keeping."""
        check_weights(self._run)
        if self._due:
            self._read()
        elif self._run.ranks.many:  # each rank's replaced samples are in its own ledger until they meet
            self._tell_replaced()
        state = {
            "run": self._run.state_dict(),
            "weights": self._run.built.result.to_save(),
            "loop": {
                "evaluated_at": self._evaluated_at,
                "results": {step: self._results[step] for step in self._worth_keeping()},
                "skips_told": self._skips_told,
                "losses": self._run.losses.state_dict(),
                "spikes": self._spikes.state_dict(),
            },
            "log": {"seconds": time.monotonic() - self._start},
        }
        return to_save(state, self._run.built.strategy.sharding)

    def _worth_keeping(self) -> set[int]:
        return {self._run.built.result.step, self._evaluated_at} & self._results.keys()

    def _go_on(self, loop: Mapping[str, Any], log: Mapping[str, Any]) -> None:
        self._evaluated_at, self._results = loop["evaluated_at"], loop["results"]
        self._skips_told = loop["skips_told"]
        self._run.losses.load_state_dict(loop["losses"])
        self._spikes.load_state_dict(loop["spikes"])
        self._start -= log["seconds"]

    def _tell(self, notices: Iterable[str]) -> None:
        for notice in notices:
            self._receiver.log(Noticed(text=notice))

    def _tell_of_first_step(self) -> None:
        if self._first_step_told:
            return
        self._first_step_told, names = True, self._run.built.step.unreached or ()
        if self._run.built.step.window.loss_is_summed:
            self._tell([SUMMED])
        if names:
            others = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            reached = f"no gradient reached {', '.join(names[:_NAMED])}{others} in the first step"
            self._tell([f"{reached}: the loss does not use it, or not in every step"])

    def _tell_replaced(self) -> None:
        """Tell the samples that any rank has replaced. All ranks come here at the same step; raises Ledger.take's."""
        run = self._run
        if run.job.on_bad_sample == "replace":
            run.loader.ledger.take(gather_over_ranks(run.loader.ledger.waiting(), run.grid.data, run.device))
            self._tell(run.loader.ledger.unreported())

    # ── log lines ───────────────────────────────────────────────────────────────────────────────────────────────────

    def _log(self, epoch: int) -> None:
        covered = len(self._run.losses) - sum(windows for windows, _ in self._due)
        if not covered:
            return
        self._due.append((covered, self._line.next(epoch)))
        if len(self._run.losses) >= self._run.setup.step.read_every:
            self._read()

    def _read(self) -> None:
        """Send out the lines that wait and tell what was replaced, for which ranks meet; look at every loss."""
        self._tell_of_first_step()
        self._run.built.step.skips.settle()
        skips = self._run.built.step.skips.skipped
        explained, self._skips_told = skips > self._skips_told, skips
        sent = self._send_lines()
        self._tell_replaced()
        if not explained:
            for windows, line in sent:
                self._check_finite(windows, line)

    def _send_lines(self) -> list[tuple[list[WindowLoss], Trained]]:
        """Fetch the losses of all windows so far and send out the lines that waited for them; each with its windows."""
        windows = self._run.losses.drain(sum(covered for covered, _ in self._due))
        sent = list[tuple[list[WindowLoss], Trained]]()
        for covered, line in self._due:
            mine, windows = windows[:covered], windows[covered:]
            self._ready.append((mine, replace(line, loss=mean_loss(mine))))
        self._due = []
        while self._ready:
            sent.append(self._ready.pop(0))
            line = sent[-1][1]
            spike = self._spikes.observe(line.loss, line.step)
            self._receiver.log(line)
            if spike is not None:
                self._receiver.log(Noticed(text=spike))
        return sent

    def _check_finite(self, windows: list[WindowLoss], line: Trained) -> None:
        """A skipped update says by itself that something was not finite; a loss that is not, under finite gradients,
        would be silent."""
        for offset, window in enumerate(windows):
            check_count(window.items, line.step - len(windows) + 1 + offset)  # of an accelerator it was not read before
            if not abs(window.mean) < float("inf"):
                check_weights(self._run)  # which would be the cause
                step = line.step - len(windows) + 1 + offset
                raise NonFinite(
                    f"the loss is {window.mean} although every gradient was finite",
                    where=f"optimizer step {step} ({self._run.built.batches.describe(step)})",
                    fix="look for a term of the loss that carries no gradient",
                )

    # ── evaluations ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _evaluate(self, epoch: int) -> None:
        run = self._run
        if run.job.valid is None or self._evaluated_at == run.steps:
            return
        self._log(epoch)
        self._read()
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
            self._receiver.log(Noticed(text=text))
        self._receiver.log(
            Evaluated(
                step=run.steps,
                epoch=epoch,
                results=evaluation.results,
                seconds=evaluation.seconds,
                batch_size=evaluation.batch_size,
                best=run.stopping is not None and run.stopping.best_step == run.steps,
            )
        )
        self._line.restart()
        if self._keeping is not None:
            self._keeping.after_evaluation(run, self._state)

    def _finish(self) -> Result:
        run = self._run
        self._evaluate(self._epoch)
        self._log(self._epoch)
        self._read()
        check_weights(run)
        run.built.state.settle()
        if self._keeping is not None:
            self._keeping.at_the_end(run, self._state)
        if run.compiling is not None:
            self._receiver.log(Noticed(text=run.compiling.summary()))
        weights = run.weights()
        results = self._results.get(run.built.result.step, {})
        seconds = time.monotonic() - self._start
        return Result(
            job=run.job,
            weights=weights,
            results=results,
            reason=_reason(run),
            steps=run.steps,
            epochs=run.built.batches.position.whole_epochs,
            seconds=seconds,
            kept_step=run.built.result.step,
            skipped_updates=run.built.step.skips.skipped,
        )


def _reason(run: Run) -> str:
    if run.built.ending.reached:
        return "the target is reached"
    stopped = run.stopping is not None and run.stopping.exhausted
    return "stopped early" if stopped else "the planned run is complete"


def check_weights(run: Run) -> None:
    """Raises NonFinite where a weight is NaN or infinite that was finite when the run was made. Waits for the device.

    A finite gradient times a rate can overflow a weight. The next step is then refused, but a checkpoint may come
    before it. It reads every weight, so it is for moments that copy them all anyway.
    """
    name = run.built.step.non_finite_weight()
    if name is not None:
        raise NonFinite(
            f"{name} is not finite, although every gradient was: an update has overflowed it",
            where=f"after optimizer step {run.steps}",
            fix="use a lower learning rate, or clip_norm=1.0; earlier checkpoints are unharmed",
        )
