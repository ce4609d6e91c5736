"""Where the seconds of a trial's steps go, measured on steps that it takes anyway.

A clock is read at the boundaries inside the steps of a window, so the parts add up to the step:

    data wait    until the next microbatch is here, without its transfer; turns of epochs are in no part
    transfer     putting batches on the device, converting their memory layout, and the wait for the copy
    forward      with autocast and the loss
    backward     with weighing and scaling the loss
    optimizer    dividing by the count, unscaling, the finite check, clipping, updates, schedule and averages
    python       what is left: the loop that asks for a batch and hands it on
    evaluation   one whole evaluation, extrapolated from a part of its batches where it is long

On an accelerator every boundary waits for the computing stream, so the step is longer than an unobserved one.
"""

from __future__ import annotations

import time
from dataclasses import asdict
from typing import Any

import torch

from hasten.measure.process_memory import fault_cost, page_faults
from hasten.measure.speedup_bound import STEP, Part
from hasten.training.probes.brief_run import observing
from hasten.training.run import Run
from hasten.training.step_parts.window import Phase
from hasten.tuning.search.bounds import Around
from hasten.tuning.trials.trial import EVALUATION_SECONDS, WARM_UP_STEPS, Trial

_PART_OF = {Phase.FORWARD: Part.FORWARD, Phase.BACKWARD: Part.BACKWARD, Phase.UPDATE: Part.OPTIMIZER}


def step_budget(trial: Trial, steps: int) -> dict[str, Any]:
    """spent: the fields of facts.trials.Budget but its arm; around: those of bounds.Around.

    The steps are the trial's own next ones; windows can follow. A run that has trained no step yet is warmed up before.
    steps: fewer are taken where the planned run is shorter.
    """
    if trial.run.total_steps is not None:
        steps = min(steps, max(1, trial.run.total_steps - WARM_UP_STEPS))
    if not trial.run.steps:
        trial.window(WARM_UP_STEPS)
    trial.make_room(steps)
    clock = _Clock(trial.run)
    with observing(trial.run, clock):
        faults = page_faults()
        window = trial.window(steps)
        faults = page_faults() - faults
    taken = window["steps"]
    seconds = {part: clock.seconds[part] / taken for part in STEP - {Part.PYTHON}}
    # The parts do not overlap inside the window, so a negative remainder can only be rounding.
    seconds[Part.PYTHON] = max(0.0, window["seconds"] / taken - sum(seconds.values()))
    trial.evaluate(EVALUATION_SECONDS)  # the first one is slower, by far where it compiles the model once more
    seconds[Part.EVALUATION] = trial.evaluate(EVALUATION_SECONDS)["seconds"]
    spent = {part.value: value for part, value in seconds.items()}
    cost = fault_cost().seconds if trial.run.device.type == "cpu" else 0.0  # on an accelerator bounds do not use it
    around = Around(
        on_cpu=trial.run.device.type == "cpu",
        cores=trial.run.setup.machine.cores,
        reads_beside=trial.run.setup.loader.workers > 0,
        fault_seconds=faults / taken * cost,
    )
    return {"spent": {**spent, "steps": taken}, "around": asdict(around)}


class _Clock:
    """Adds up the seconds between the boundaries of one run's steps."""

    def __init__(self, run: Run) -> None:
        self.seconds = dict.fromkeys(STEP, 0.0)
        self._run, self._epoch = run, run.epoch if run.steps else -1
        self._waited, self._placing = run.built.batches.wait_seconds, 0.0
        self._mark = self._placing_since = 0.0
        self._stream = torch.cuda.current_stream(run.device) if run.device.type == "cuda" else None

    def __call__(self, phase: Phase) -> None:
        if phase is Phase.PLACING:
            self._placing_since = time.perf_counter()
        elif phase is Phase.PLACED:
            self._placing += time.perf_counter() - self._placing_since
        elif phase is Phase.READY:
            self._begin()
        else:
            self._lap(_PART_OF[phase])

    def _begin(self) -> None:
        run = self._run
        waited, placing = run.built.batches.wait_seconds - self._waited, self._placing
        self._waited, self._placing = run.built.batches.wait_seconds, 0.0
        if run.epoch == self._epoch:  # else it was the turn of an epoch
            self.seconds[Part.DATA_WAIT] += waited - placing
            self.seconds[Part.TRANSFER] += placing
        self._epoch, self._mark = run.epoch, time.perf_counter()
        if self._stream is not None:
            self._lap(Part.TRANSFER)  # the stream that computes waits for the copy of this batch

    def _lap(self, part: Part) -> None:
        if self._stream is not None:
            self._stream.synchronize()
        now = time.perf_counter()
        self.seconds[part] += now - self._mark
        self._mark = now
