"""The whole run: epochs, log lines, evaluations, early stopping, and what was learned at the end.

Between two reads of the device the loop does nothing per step but count. A log line that is due earlier than a read
keeps what the host knows of its moment, and waits for its loss.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from torch import Tensor, nn

from hasten.errors import NonFinite
from hasten.facts.events import Evaluated, Noticed, Receiver, Started, Trained
from hasten.facts.job import Job
from hasten.parallel.replicate import gather_over_ranks
from hasten.training.loss_record import WindowLoss, mean_loss
from hasten.training.peak_memory import peak_memory
from hasten.training.run import Run


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
        model.load_state_dict(dict(self.weights))
        return model.eval()


def train_run(run: Run, receiver: Receiver) -> Result:
    """Train to the planned end or an early stop; every event goes to `receiver`, which stays open."""
    return _Loop(run, receiver).train()


class _Loop:
    def __init__(self, run: Run, receiver: Receiver) -> None:
        self._run, self._receiver = run, receiver
        self._start = time.monotonic()
        self._line = _LineClock(run, self._start)
        self._due: list[tuple[int, Trained]] = []  # log lines without their loss yet, and how many windows each covers
        self._results: dict[int, Mapping[str, float]] = {}
        self._evaluated_at = -1
        self._skips_told = self._epoch = 0

    def train(self) -> Result:
        self._announce()
        try:
            self._train_epochs()
            return self._finish()
        except BaseException as error:
            self._tell_what_waits(error)
            self._send_what_waits(error)
            raise

    def _tell_what_waits(self, error: BaseException) -> None:
        """The samples that were replaced, before `error` ends the run; with it, where they cannot be logged."""
        ledger = self._run.loader.ledger
        try:
            if self._run.ranks.leads:
                self._tell(ledger.untold())
        except Exception as second:
            error.add_note(f"what was to be told is told here instead: {type(second).__name__}: {second}")
        for text in ledger.untold():
            error.add_note(text)

    def _send_what_waits(self, error: BaseException) -> None:
        """The log lines that wait for their loss, before `error` ends the run; it stays the one that is told."""
        # Losses of many ranks are added up by all of them, and the others are elsewhere.
        if not self._due or self._run.ranks.many:
            return
        try:
            self._send_lines()
        except Exception as second:
            error.add_note(f"log lines that waited for their loss are lost: {type(second).__name__}: {second}")

    def _train_epochs(self) -> None:
        run = self._run
        while not run.finished:
            self._epoch = run.epoch
            self._train_epoch()
            if run.job.evaluate_every is None:
                self._evaluate(self._epoch)

    def _train_epoch(self) -> None:
        run, job, steps_left = self._run, self._run.job, self._steps_until_due()
        for batch in run.epoch_batches():
            run.step(batch)
            if not run.window_closed:
                continue
            steps_left -= 1
            if steps_left:
                continue
            if run.steps % job.log_every == 0:
                self._log(self._epoch)
            if job.evaluate_every is not None and run.steps % job.evaluate_every == 0:
                self._evaluate(self._epoch)
            if run.finished:
                return
            steps_left = self._steps_until_due()

    def _steps_until_due(self) -> int:
        """How many steps lie before anything but training is to be done: until then the loop only counts."""
        steps, job = self._run.steps, self._run.job
        marks = [steps - steps % every + every for every in (job.log_every, job.evaluate_every) if every is not None]
        if job.max_steps is not None:
            marks.append(max(job.max_steps, steps + 1))  # updates that were skipped make a run longer
        return min(marks) - steps

    def _announce(self) -> None:
        run, setup = self._run, self._run.setup
        self._receiver.log(
            Started(
                job=run.name,
                machine=setup.machine.summary,
                device=str(run.device),
                parameters=run.built.fingerprint.parameters,
                samples=run.built.fingerprint.samples,
                batch_size=run.built.batch_size,
                microbatch_size=setup.step.microbatch_size or run.built.batch_size,
                total_steps=run.total_steps,
                total_epochs=run.total_epochs,
                choices=tuple(str(item.choice) for item in run.plan.choices),
            )
        )
        self._tell(run.notices)

    def _tell(self, notices: Iterable[str]) -> None:
        for notice in notices:
            self._receiver.log(Noticed(text=notice))

    def _tell_replaced(self) -> None:
        """Tell the samples that any rank has replaced. All ranks come here at the same step; raises Ledger.take's."""
        run = self._run
        if run.job.on_bad_sample == "replace":
            run.loader.ledger.take(gather_over_ranks(run.loader.ledger.waiting(), run.ranks, run.device))
            self._tell(run.loader.ledger.untold())

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
        skips = self._run.settled_skips()
        explained, self._skips_told = skips > self._skips_told, skips
        sent = self._send_lines()
        self._tell_replaced()
        if not explained:
            for windows, line in sent:
                self._check_finite(windows, line)

    def _send_lines(self) -> list[tuple[list[WindowLoss], Trained]]:
        """Fetch the losses of all windows so far and send out the lines that waited for them; each with its windows."""
        windows, sent = self._run.losses.drain(), list[tuple[list[WindowLoss], Trained]]()
        due, self._due = self._due, []
        for covered, line in due:
            mine, windows = windows[:covered], windows[covered:]
            self._receiver.log(replace(line, loss=mean_loss(mine)))
            sent.append((mine, line))
        return sent

    def _check_finite(self, windows: list[WindowLoss], line: Trained) -> None:
        """A skipped update says by itself that something was not finite; a loss that is not, under finite gradients,
        would be silent."""
        for offset, window in enumerate(windows):
            if not abs(window.mean) < float("inf"):
                raise NonFinite(
                    f"the loss is {window.mean} although every gradient was finite",
                    where=f"optimizer step {line.step - len(windows) + 1 + offset}",
                    fix="look for a term of the loss that carries no gradient",
                )

    # ── evaluations ─────────────────────────────────────────────────────────────────────────────────────────────────

    def _evaluate(self, epoch: int) -> None:
        run = self._run
        if run.job.valid is None or self._evaluated_at == run.steps:
            return
        self._log(epoch)
        self._read()
        size_before = run.evaluation_batch_size
        evaluation = run.evaluate()
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

    def _finish(self) -> Result:
        run = self._run
        self._evaluate(self._epoch)
        self._log(self._epoch)
        self._read()
        if run.compiling is not None:
            log = run.compiling
            text = f"compiling took {log.seconds:.1f} s: {log.graphs} graphs, {log.recompiles} of them again"
            self._receiver.log(Noticed(text=text))
        weights = run.weights()
        results = self._results.get(run.kept_step, {})
        seconds = time.monotonic() - self._start
        return Result(
            job=run.job,
            weights=weights,
            results=results,
            reason=_reason(run),
            steps=run.steps,
            epochs=run.whole_epochs,
            seconds=seconds,
            kept_step=run.kept_step,
            skipped_updates=run.skipped_updates,
        )


def _reason(run: Run) -> str:
    if run.ending.reached:
        return "the target is reached"
    stopped = run.stopping is not None and run.stopping.exhausted
    return "stopped early" if stopped else "the planned run is complete"


class _LineClock:
    """Rates since the last log line: seconds, samples and the share of time that went into waiting for data."""

    def __init__(self, run: Run, start: float) -> None:
        self._run, self._start = run, start
        self._memory = peak_memory(run.device)
        self.restart()

    def restart(self) -> None:
        self._since, self._samples, self._wait = time.monotonic(), self._run.samples_seen, self._run.wait_seconds

    def next(self, epoch: int) -> Trained:
        """A line whose loss is still to come."""
        run, now = self._run, time.monotonic()
        passed = max(now - self._since, 1e-9)
        momenta = run.schedule.momenta()
        line = Trained(
            step=run.steps,
            epoch=epoch,
            loss=float("nan"),
            learning_rate=run.schedule.rates()[0],
            momentum=momenta[0],
            gradient_norm=run.gradient_norm if run.setup.step.read_every <= run.job.log_every else None,
            seconds=now - self._start,
            samples_per_second=(run.samples_seen - self._samples) * run.ranks.size / passed,
            data_wait_share=min((run.wait_seconds - self._wait) / passed, 1.0),
            memory_bytes=self._memory(),
            skipped_updates=run.skipped_updates,
        )
        self.restart()
        return line
