"""What runs in an arm's process: build the job by a plan, then answer requests until none comes any more. REQUESTS
lists what an arm can be asked: a function of the trial and the request's fields."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from hasten.facts.plan_file import plan_from_toml
from hasten.training.setup.job_options import JobOptions
from hasten.training.setup.load_job import load_job
from hasten.tuning.proof.gradient_check import judge_gradients_of, keep_references
from hasten.tuning.proof.training_runs import planned_run, target_metric, train, train_on
from hasten.tuning.trials.child_process import Messages
from hasten.tuning.trials.process_seconds import saving_seconds
from hasten.tuning.trials.step_budget import step_budget, use_threads
from hasten.tuning.trials.survey import survey
from hasten.tuning.trials.trial import Trial
from hasten.tuning.trials.trial_outcome import LONGEST_MESSAGE, outcome_of, sent_error

REQUESTS: Mapping[str, Callable[[Trial, Mapping[str, Any]], dict[str, Any]]] = {
    "window": lambda trial, asked: trial.window(asked["steps"]),
    "turn": lambda trial, asked: trial.turn(),
    "evaluate": lambda trial, asked: trial.evaluate(asked["seconds"]),
    "two epochs": lambda trial, asked: trial.two_epochs(asked["steps"]),
    "device memory": lambda trial, asked: trial.device_memory(),
    "survey": lambda trial, asked: survey(trial),
    "planned run": lambda trial, asked: planned_run(trial),
    "target metric": lambda trial, asked: target_metric(trial),
    "train": train,
    "train on": train_on,
    "references": lambda trial, asked: keep_references(trial, asked["folder"], asked["first"], asked["steps"]),
    "gradients": lambda trial, asked: judge_gradients_of(trial, asked["folder"], asked["kept"]),
    "saving": lambda trial, asked: {"seconds": saving_seconds(trial.run, keeps_best=bool(trial.keep or trial.stop))},
    "budget": lambda trial, asked: step_budget(trial, asked["steps"]),
    "threads": lambda trial, asked: use_threads(asked["count"]),
}


def serve(messages: Messages, name: str, plan: str, options: JobOptions) -> None:
    """plan: TOML."""
    me = os.getpid()
    try:
        begin = time.perf_counter()
        notices = list[str]()
        trial = Trial(load_job(name, options=options, notify=notices.append), plan_from_toml(plan), name)
        answer: dict[str, Any] = {
            "seconds": time.perf_counter() - begin,
            "data": dict(trial.run.built.data),
            "notices": notices,
        }
        while os.getpid() == me:  # and not in a copy of the arm that the job has forked
            messages.send(answer)
            if (asked := messages.wait()) is None:
                return
            answer = REQUESTS[asked["do"]](trial, asked)
    except BaseException as error:
        if os.getpid() == me:
            message = f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE]
            messages.send({"failed": outcome_of(error).value, "message": message, "error": asdict(sent_error(error))})
