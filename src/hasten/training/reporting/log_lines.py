"""The log lines of a run, and the notices that belong to its steps."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from hasten.errors import NonFinite
from hasten.facts.events import Noticed, Receiver, Trained
from hasten.parallel.collectives import gather_over_ranks
from hasten.training.probes.peak_memory import peak_memory
from hasten.training.reporting.spikes import Spikes
from hasten.training.run import Run
from hasten.training.step_parts.losses import WindowLoss, check_count, mean_loss, mean_parts

_NAMED = 5  # of many parameters


class LogLines:
    """add() where a line is due; read() where the device is read."""

    def __init__(self, run: Run, receiver: Receiver) -> None:
        self._run, self._receiver = run, receiver
        self._memory, self._spikes = peak_memory(run.device), Spikes()
        self._due = list[tuple[int, Trained]]()  # lines without their loss, and how many windows each covers
        self._skips_reported, self._first_step_reported = 0, False
        self.start = time.monotonic()  # of the run, also where it was resumed
        self.restart()

    def restart(self) -> None:
        """Rates are measured from here on."""
        batches = self._run.built.batches
        self._since, self._samples, self._wait = time.monotonic(), batches.samples_seen, batches.wait_seconds

    def add(self, epoch: int) -> None:
        """A line of all windows since the last one; nothing where there are none."""
        run = self._run
        covered = len(run.losses) - sum(windows for windows, _ in self._due)
        if not covered:
            return
        self._due.append((covered, self._line(epoch)))
        if len(run.losses) >= run.setup.step.read_every:
            self.read()

    def read(self) -> None:
        """Log the lines that wait, and what was replaced, for which ranks meet. Raises NonFinite for a loss that is not
        finite although every gradient was."""
        skips = self._run.built.step.skips
        self._report_first_step()
        skips.settle()
        explained, self._skips_reported = skips.skipped > self._skips_reported, skips.skipped
        logged = self._log_lines()
        self.report_replaced()
        if not explained:  # else the skipped update has reported that something was not finite
            for windows, line in logged:
                self._check_finite(windows, line)

    def read_before_saving(self) -> None:
        if self._due:
            self.read()
        elif self._run.ranks.many:  # each rank's replaced samples are in its own ledger until ranks meet
            self.report_replaced()

    def log_before(self, error: BaseException) -> None:
        """Log what waits, before `error` ends the run. What cannot be logged is added to the error."""
        ledger = self._run.loader.ledger
        try:
            if self._run.ranks.leads:
                self.notices(ledger.unreported())
            if not self._run.ranks.many:  # losses of many ranks are summed by all of them, and the others are elsewhere
                self._log_lines()
        except Exception as second:
            error.add_note(f"log lines and notices that waited are lost: {type(second).__name__}: {second}")
        for text in ledger.unreported():
            error.add_note(text)

    def notices(self, texts: Iterable[str]) -> None:
        for text in texts:
            self._receiver.log(Noticed(text=text))

    def report_replaced(self) -> None:
        """Log the samples that any rank has replaced. All ranks call it at the same step; raises as Ledger.take."""
        run, ledger = self._run, self._run.loader.ledger
        if run.job.on_bad_sample == "replace":
            ledger.take(gather_over_ranks(ledger.waiting(), run.grid.data, run.device))
            self.notices(ledger.unreported())

    def _line(self, epoch: int) -> Trained:
        """Without its loss."""
        run, batches, now = self._run, self._run.built.batches, time.monotonic()
        passed, (rate, momentum) = max(now - self._since, 1e-9), run.schedule.last()
        line = Trained(
            step=run.steps,
            epoch=epoch,
            loss=float("nan"),
            learning_rate=rate,
            momentum=momentum,
            gradient_norm=run.gradient_norm if run.setup.step.read_every <= run.job.log_every else None,
            seconds=now - self.start,
            samples_per_second=(batches.samples_seen - self._samples) * run.grid.data.size / passed,
            data_wait_share=min((batches.wait_seconds - self._wait) / passed, 1.0),
            memory_bytes=self._memory(),
            skipped_updates=run.built.step.skips.skipped,
        )
        self.restart()
        return line

    def _log_lines(self) -> list[tuple[list[WindowLoss], Trained]]:
        """Fetch the losses of all windows so far and log the lines that waited for them; each with its windows."""
        windows = self._run.losses.drain(sum(covered for covered, _ in self._due))
        due, self._due = self._due, []
        logged = list[tuple[list[WindowLoss], Trained]]()
        for covered, waiting in due:
            mine, windows = windows[:covered], windows[covered:]
            line = replace(waiting, loss=mean_loss(mine), parts=mean_parts(mine))
            logged.append((mine, line))
            spike = self._spikes.observe(line.loss, line.step)
            self._receiver.log(line)
            if spike is not None:
                self.notices([spike])
        return logged

    def _report_first_step(self) -> None:
        if self._first_step_reported:
            return
        self._first_step_reported, names = True, self._run.built.step.unreached or ()
        if names:
            others = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            reached = f"no gradient reached {', '.join(names[:_NAMED])}{others} in the first step"
            self.notices([f"{reached}: the loss does not use it, or not in every step"])

    def _check_finite(self, windows: list[WindowLoss], line: Trained) -> None:
        """A loss that is not finite under finite gradients would not be reported otherwise."""
        built = self._run.built
        for step, window in enumerate(windows, start=line.step - len(windows) + 1):
            check_count(window.items, step)  # of an accelerator it was not read before
            if not abs(window.mean) < float("inf"):
                built.step.check_weights()  # which would be the cause
                raise NonFinite(
                    f"the loss is {window.mean} although every gradient was finite",
                    where=f"optimizer step {step} ({built.batches.describe(step)})",
                    fix="look for a term of the loss that carries no gradient",
                )

    def state_dict(self) -> dict[str, Any]:
        return {
            "skips_reported": self._skips_reported,
            "losses": self._run.losses.state_dict(),
            "spikes": self._spikes.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._skips_reported = state["skips_reported"]
        self._run.losses.load_state_dict(state["losses"])
        self._spikes.load_state_dict(state["spikes"])
