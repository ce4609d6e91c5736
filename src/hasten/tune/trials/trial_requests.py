"""The life of an arm's process: build the job by a plan, then answer requests until nobody asks any more.

Requests and answers are JSON messages. Whatever the job prints goes elsewhere, so nothing it says is taken for an
answer. What an arm can be asked stands in REQUESTS: a function of the trial and the request's fields.
"""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from typing import Any

from hasten.errors import Misconfigured, NonFinite, OutOfMemory
from hasten.facts.plan_file import plan_from_toml
from hasten.training.failures.as_failure import as_failure, is_out_of_memory
from hasten.training.failures.user_code import users_traceback
from hasten.training.setup.load_job import load_job
from hasten.tune.proof.evaluated import aim, evaluated_run, evaluated_run_on
from hasten.tune.proof.gradient_check import judge_gradients_of, keep_references
from hasten.tune.proof.same_gradients import compare_gradients, keep_gradients
from hasten.tune.proof.training_runs import planned_run, train, train_on
from hasten.tune.trials.messages import Messages
from hasten.tune.trials.process_seconds import saving_seconds
from hasten.tune.trials.rates import rates
from hasten.tune.trials.step_budget import spending
from hasten.tune.trials.survey import survey
from hasten.tune.trials.trial import Trial
from hasten.tune.trials.trial_outcome import LONGEST_MESSAGE, Fate, Told

_NO_SPACE = (errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC))

REQUESTS: Mapping[str, Callable[[Trial, Mapping[str, Any]], dict[str, Any]]] = {
    "window": lambda trial, asked: trial.window(asked["steps"]),
    "turn": lambda trial, asked: trial.turn(),
    "evaluate": lambda trial, asked: trial.evaluate(asked["seconds"]),
    "two epochs": lambda trial, asked: trial.two_epochs(asked["steps"]),
    "device memory": lambda trial, asked: trial.device_memory(),
    "survey": lambda trial, asked: survey(trial),
    "rates": lambda trial, asked: rates(trial),
    "planned run": lambda trial, asked: planned_run(trial),
    "train": train,
    "train on": train_on,
    "aim": lambda trial, asked: aim(trial),
    "evaluated run": evaluated_run,
    "evaluated run on": evaluated_run_on,
    "references": lambda trial, asked: keep_references(trial, asked["folder"], asked["first"], asked["steps"]),
    "gradients": lambda trial, asked: judge_gradients_of(trial, asked["folder"], asked["kept"]),
    "keep gradients": lambda trial, asked: keep_gradients(trial, asked["folder"]),
    "compare gradients": lambda trial, asked: compare_gradients(trial, asked["folder"], asked["kept"]),
    "saving": lambda trial, asked: {"seconds": saving_seconds(trial.run)},
    "budget": lambda trial, asked: spending(trial, asked["steps"]),
}


def serve(messages: Messages, name: str, plan: str) -> None:
    """plan: TOML."""
    me = os.getpid()
    try:
        begin = time.perf_counter()
        trial = Trial(load_job(name), plan_from_toml(plan), name)
        fields: dict[str, Any] = {"seconds": time.perf_counter() - begin, "data": dict(trial.run.built.data)}
        while os.getpid() == me:  # and no copy that the job has made of the arm: that was asked nothing
            messages.send(fields)
            if (asked := messages.wait()) is None:
                return  # nobody asks any more
            fields = REQUESTS[asked["do"]](trial, asked)
    except BaseException as error:
        if os.getpid() == me:
            message = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]
            messages.send({"failed": _fate_of(error).value, "message": message, "told": _told(error)})


def _told(error: BaseException) -> dict[str, str] | None:
    """The fields of Told; None for what says no more than its message."""
    failure = as_failure(error)
    if failure is None:
        return None
    told = Told(
        kind=type(failure).__name__,
        what=failure.what,
        where=failure.where,
        fix=failure.fix,
        trace=users_traceback(error.__cause__ or error)[-LONGEST_MESSAGE:],
    )
    return asdict(told)


def _fate_of(error: BaseException) -> Fate:
    if isinstance(error, OutOfMemory) or is_out_of_memory(error):
        return Fate.OUT_OF_MEMORY
    if isinstance(error, NonFinite):
        return Fate.NON_FINITE
    if any(isinstance(one, OSError) and one.errno in _NO_SPACE for one in _chain(error)):
        return Fate.DISK_FULL
    return Fate.REFUSED if isinstance(error, Misconfigured) else Fate.CRASHED


def _chain(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what caused it, and so on."""
    seen: set[int] = set()
    while error is not None and id(error) not in seen:  # `raise error from error` is its own cause
        seen.add(id(error))
        yield error
        error = error.__cause__ or error.__context__
