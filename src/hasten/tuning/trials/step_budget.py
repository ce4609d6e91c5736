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

from dataclasses import asdict
from typing import Any

import torch

from hasten.doctor.profiling.timed_steps import PartsClock
from hasten.measure.process_memory import fault_cost, page_faults
from hasten.measure.speedup_bound import Part
from hasten.training.probes.brief_run import observing
from hasten.tuning.search.bounds import Around
from hasten.tuning.trials.trial import EVALUATION_SECONDS, WARM_UP_STEPS, Trial


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
    batches, clock = trial.run.built.batches, PartsClock(trial.settle)
    waited = batches.wait_seconds
    with observing(trial.run, clock):
        faults = page_faults()
        window = trial.window(steps)
        faults = page_faults() - faults
    taken = window["steps"]
    turns = [seconds for _, seconds in window["turns"]]
    seconds = {Part(name): value / taken for name, value in clock.seconds.items()}
    seconds[Part.TRANSFER] *= max(0.0, 1 - len(turns) / taken)
    waited = (batches.wait_seconds - waited - sum(turns)) / taken
    seconds[Part.DATA_WAIT] = max(0.0, waited - seconds[Part.TRANSFER])
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


def use_threads(count: int) -> dict[str, Any]:
    """Of this process, from now on. before: how many it had."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    return {"before": before}
