"""One arm of a trial, in its own process: the job built by a plan, and windows of its optimizer steps on request.

The steps are those that the training itself would take, on its own loader, from its first one on. When the planned run
has no whole window left, it is begun anew, outside of what is timed. Requests and answers are JSON; whatever the job
prints goes elsewhere, so nothing it says is taken for an answer.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection
from typing import Any

import torch

from hasten.errors import Misconfigured, NonFinite, OutOfMemory
from hasten.facts.job import Job
from hasten.facts.plan import Plan
from hasten.facts.plan_file import plan_from_toml
from hasten.training.failures import is_out_of_memory
from hasten.training.locate import load_job
from hasten.training.loss_record import mean_loss
from hasten.training.run import Run
from hasten.tune.fate import Fate

LONGEST_MESSAGE = 10_000  # characters of an error's words


class Trial:
    """A job under a plan that runs windows of whole optimizer steps."""

    def __init__(self, job: Job, plan: Plan, name: str) -> None:
        self._job, self._plan, self._name = job, plan, name
        self._begin()

    def _begin(self) -> None:
        self._run = Run(self._job, self._plan, name=self._name)
        self._batches: Iterator[Any] = self._run.batches()

    def close(self) -> None:
        self._run.close()

    def window(self, steps: int) -> dict[str, float]:
        """Take so many optimizer steps: how many were taken, and the seconds of all.

        Fewer are taken where the planned run is shorter. Raises NonFinite for a loss that is not finite.
        """
        if self._run.steps and not self._has_room_for(steps):
            self.close()
            self._begin()
        run = self._run
        first = run.steps
        self._settle()
        begin = time.perf_counter()
        for batch in self._batches:
            run.step(batch)
            if run.steps - first == steps:
                break
        self._settle()
        seconds = time.perf_counter() - begin
        self._check_losses(first)
        return {"steps": run.steps - first, "seconds": seconds}

    def _has_room_for(self, steps: int) -> bool:
        total = self._run.total_steps
        return total is None or total - self._run.steps >= steps

    def _settle(self) -> None:
        if self._run.device.type == "cuda":
            torch.cuda.synchronize(self._run.device)  # queued work would be billed to the next window, or to nobody

    def _check_losses(self, first: int) -> None:
        losses = self._run.losses.drain()
        if losses and not math.isfinite(loss := mean_loss(losses)):
            raise NonFinite(f"the loss is {loss} within the steps from {first + 1} on")


def serve(line: Connection, output: Connection, name: str, plan: str, environment: dict[str, str]) -> None:
    """The life of the process. line: requests and answers; output: takes what the job prints; plan: TOML."""
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
            _answer(line, **trial.window(json.loads(line.recv_bytes())["steps"]))
    except EOFError:
        return  # nobody asks any more
    except BaseException as error:
        _answer(line, failed=_fate_of(error).value, message=f"{type(error).__name__}: {error}"[:LONGEST_MESSAGE])


def _answer(line: Connection, **fields: float | str) -> None:
    line.send_bytes(json.dumps(fields).encode())


def _fate_of(error: BaseException) -> Fate:
    if isinstance(error, OutOfMemory) or is_out_of_memory(error):
        return Fate.OUT_OF_MEMORY
    if isinstance(error, NonFinite):
        return Fate.NON_FINITE
    return Fate.REFUSED if isinstance(error, Misconfigured) else Fate.CRASHED
