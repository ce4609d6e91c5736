"""The process that `hasten prove resume` kills: it trains a job as `hasten train` does, and tells how far it has come.

tune/run_process.py is its other side.
"""

from __future__ import annotations

import faulthandler
import signal
import traceback
from collections.abc import Mapping
from dataclasses import asdict
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hasten.cli.application import load, read
from hasten.facts.events import Event, Resumed, Started, Trained
from hasten.facts.saving import Saving

if TYPE_CHECKING:
    from hasten.tune.trials.messages import Messages

GRACE_SECONDS = 3600.0  # nobody is in a hurry: the checkpoint that the run ends with is what is compared


class Teller:
    """A receiver that tells who began this process of every step, and asks the run to end after one of them.

    steps: after which; a run whose planned end is not later comes to that by itself.
    """

    def __init__(self, messages: Messages, steps: int) -> None:
        self._messages, self._steps = messages, steps
        self._asks = True

    def tell(self, told: str, **fields: Any) -> None:
        self._messages.send({"told": told, **fields})

    def log(self, event: Event) -> None:
        if isinstance(event, Started | Resumed):
            planned = event.total_steps if isinstance(event, Started) else event.started.total_steps
            self._asks = planned is None or planned > self._steps
            step = event.step if isinstance(event, Resumed) else 0
            self.tell("going", step=step, total_steps=planned)
            self._end_after(step)
        elif isinstance(event, Trained):
            self.tell("step", step=event.step)
            self._end_after(event.step)
        else:
            self.tell(type(event).__name__)

    def close(self) -> None:
        """The connection stays: how the run ends is still to be told."""

    def _end_after(self, step: int) -> None:
        if self._asks and step >= self._steps:
            self._asks = False
            signal.raise_signal(signal.SIGTERM)


def train(told: Mapping[str, Any]) -> None:
    """told: the fields of an Errand; descriptors to tell through (line) and to write stacks to (report); the number of
    the process that asks (parent)."""
    from hasten.training.probes.stacks import signal_to_ask_by
    from hasten.tune.trials.messages import Messages
    from hasten.tune.trials.process_tree import die_with

    die_with(told["parent"])
    if (asked_by := signal_to_ask_by()) is not None:
        faulthandler.register(asked_by, file=told["report"], all_threads=True)
    teller = Teller(Messages(Connection(told["line"])), told["steps"])
    teller.tell("loaded")
    try:
        teller.tell("ended", complete=_trained(told, teller))
    except BaseException as error:
        teller.tell("failed", error=_told(error))
        raise


def _trained(told: Mapping[str, Any], teller: Teller) -> bool:
    """Whether the run has come to its planned end, and not to the step after which it was asked to end."""
    from hasten import entry

    job = load(told["job"], log_every=1)
    plan = read(None if told["plan"] is None else Path(told["plan"]))
    saving = Saving(every_steps=told["save_every"], keep_last=2, grace_seconds=GRACE_SECONDS)
    begin = entry.resume if told["goes_on"] else entry.train
    try:
        begin(job, plan, run_dir=told["folder"], saving=saving, receivers=[teller], name=told["job"])
    except KeyboardInterrupt:  # by the signal above, as Terminated
        return False
    return True


def _told(error: BaseException) -> dict[str, str]:
    from hasten.training.failures.as_failure import as_failure
    from hasten.training.failures.user_code import users_traceback
    from hasten.tune.trials.trial_outcome import LONGEST_MESSAGE, Told

    failure = as_failure(error)
    if failure is None:  # of hasten itself
        trace = "".join(traceback.format_exception(error))[-LONGEST_MESSAGE:]
        return asdict(Told(kind="", what=str(error), trace=trace))
    trace = users_traceback(error.__cause__ or error)[-LONGEST_MESSAGE:]
    told = Told(kind=type(failure).__name__, what=failure.what, where=failure.where, fix=failure.fix, trace=trace)
    return asdict(told)
