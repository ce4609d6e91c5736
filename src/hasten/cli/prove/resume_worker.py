"""The process that `hasten prove resume` kills: it trains a job as `hasten train` does, and sends its progress.

tuning/resume/run_process.py starts it, and reads what it sends.
"""

from __future__ import annotations

import signal
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cli.application import read
from hasten.facts.events import Event, Resumed, Started, Trained
from hasten.facts.saving import Saving

if TYPE_CHECKING:
    from hasten.training.setup.job_options import JobOptions
    from hasten.tuning.resume.run_process import Errand
    from hasten.tuning.trials.child_process import Messages

GRACE_SECONDS = 3600.0  # the last checkpoint is compared, so it must be complete


class ProgressSender:
    """A receiver that sends every step to the process that proves, and asks the run to end after some steps.

    steps: how many. A run that is planned to be shorter ends by itself.
    """

    def __init__(self, messages: Messages, steps: int) -> None:
        self._messages, self._steps = messages, steps
        self._asks = True

    def send(self, event: str, **fields: Any) -> None:
        self._messages.send({"event": event} | fields)

    def log(self, event: Event) -> None:
        try:
            self._log(event)
        except OSError as error:  # nobody proves any more
            raise KeyboardInterrupt from error

    def _log(self, event: Event) -> None:
        if isinstance(event, Started | Resumed):
            planned = event.total_steps if isinstance(event, Started) else event.started.total_steps
            self._asks = planned is None or planned > self._steps
            step = event.step if isinstance(event, Resumed) else 0
            self.send("going", step=step, total_steps=planned)
            self._end_after(step)
        elif isinstance(event, Trained):
            self.send("step", step=event.step)
            self._end_after(event.step)
        else:
            self.send(type(event).__name__)

    def close(self) -> None:
        """The connection stays open: how the run ends is sent later."""

    def _end_after(self, step: int) -> None:
        if self._asks and step >= self._steps:
            self._asks = False
            signal.raise_signal(signal.SIGTERM)


def train(options: JobOptions, errand: Errand, messages: Messages) -> None:
    from hasten.tuning.trials.trial_outcome import sent_error

    sender = ProgressSender(messages, errand.steps)
    sender.send("loaded")
    try:
        sender.send("ended", complete=_trained(options, errand, sender))
    except BaseException as error:
        sender.send("failed", error=asdict(sent_error(error)))
        raise


def _trained(options: JobOptions, errand: Errand, sender: ProgressSender) -> bool:
    """Whether the run reached its planned end, and not the step after which it was asked to end."""
    from hasten import entry
    from hasten.training.setup.load_job import load_job

    job = replace(load_job(errand.job, options=options), log_every=1, receivers=())
    plan = read(None if errand.plan is None else Path(errand.plan))
    saving = Saving(every_steps=errand.save_every, keep_last=2, grace_seconds=GRACE_SECONDS)
    begin = entry.resume if errand.resumes else entry.train
    try:
        begin(job, plan, run_dir=errand.folder, saving=saving, receivers=[sender], name=errand.job)
    except KeyboardInterrupt:  # by the signal above, as Terminated
        return False
    return True
