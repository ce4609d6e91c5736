"""The life of an arm's process: build the job by a plan, then answer requests until nobody asks any more.

Requests and answers are JSON on a line of their own. Whatever the job prints goes elsewhere, so nothing it says is
taken for an answer. What an arm can be asked stands in REQUESTS: a function of the trial and the request's fields.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection
from typing import Any

from hasten.errors import Misconfigured, NonFinite, OutOfMemory
from hasten.facts.plan_file import plan_from_toml
from hasten.training.failures import is_out_of_memory
from hasten.training.locate import load_job
from hasten.tune.fate import Fate
from hasten.tune.survey import survey
from hasten.tune.trial import Trial

LONGEST_MESSAGE = 10_000  # characters of an error's words

REQUESTS: Mapping[str, Callable[[Trial, Mapping[str, Any]], dict[str, Any]]] = {
    "window": lambda trial, asked: trial.window(asked["steps"]),
    "turn": lambda trial, asked: trial.turn(),
    "evaluate": lambda trial, asked: trial.evaluate(),
    "survey": lambda trial, asked: survey(trial),
}


def serve(line: Connection, output: Connection, name: str, plan: str, environment: dict[str, str]) -> None:
    """line: requests and answers; output: takes what the job prints; plan: TOML."""
    os.setsid()
    os.environ.clear()  # it is that of the process copied from, as it was when that one began
    os.environ.update(environment)
    for descriptor in (1, 2):
        os.dup2(output.fileno(), descriptor)
    try:
        begin = time.perf_counter()
        trial = Trial(load_job(name), plan_from_toml(plan), name)
        _answer(line, seconds=time.perf_counter() - begin)
        while True:
            asked = json.loads(line.recv_bytes())
            _answer(line, **REQUESTS[asked["do"]](trial, asked))
    except EOFError:
        return  # nobody asks any more
    except BaseException as error:
        _answer(line, failed=_fate_of(error).value, message=f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE])


def _answer(line: Connection, **fields: Any) -> None:
    line.send_bytes(json.dumps(fields).encode())


def _fate_of(error: BaseException) -> Fate:
    if isinstance(error, OutOfMemory) or is_out_of_memory(error):
        return Fate.OUT_OF_MEMORY
    if isinstance(error, NonFinite):
        return Fate.NON_FINITE
    return Fate.REFUSED if isinstance(error, Misconfigured) else Fate.CRASHED
