"""Where the seconds of a trial's steps go, measured on the steps that it takes anyway.

A window is taken as ever, and a clock is read at the boundaries inside its steps (training/step_parts/phases.py). So
the parts add up to the step by their definition, and what the boundaries do not enclose is its remainder:

    data wait    until the next microbatch is here, without its way to the device. Loader workers read meanwhile, so it
                 is what they leave to wait for, not what reading costs. The turns of the epochs are in no part.
    transfer     putting batches on the device, laying images out for it, and the wait for the copy
    forward      with autocast and the loss
    backward     with what weighs and scales the loss
    optimizer    dividing by the count, unscaling, the finite check, clipping, updates, schedule and averages
    python       what is left: the loop that asks for a batch and hands it on
    evaluation   one whole evaluation, by a part of its batches where it is long

What "python" is not: the Python that runs inside a forward pass, a backward pass or an update, and the gaps that it
leaves between operations. A clock at the boundaries cannot see it, and a profiler that could slows small operations
most, which is where it matters. So those seconds stay with the part that they are spent in, where whatever removes them
(compiled code, a fused update) is bounded by the whole of the part. Log lines are written by the training loop and not
by a trial, so they are in no part either.

On an accelerator every boundary waits for the stream that computes. What would have overlapped then runs one after the
other, so the step is longer than one that nobody looks into; PlannedRun.step_seconds is there for that.
"""

from __future__ import annotations

import time
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import torch

from hasten.facts.trials import Budget
from hasten.measure.speedup_bound import STEP, Part
from hasten.training.probes.observed_run import observing
from hasten.training.run import Run
from hasten.training.step_parts.phases import Phase
from hasten.tune.search.bounds import Around
from hasten.tune.trials.trial import EVALUATION_SECONDS, WARM_UP_STEPS, Trial

if TYPE_CHECKING:  # an arm's process loads this file
    from hasten.tune.trials.arms import Arm

FULL = 0.8  # share of the memory there from which it is called full
_PART_OF = {Phase.FORWARD: Part.FORWARD, Phase.BACKWARD: Part.BACKWARD, Phase.UPDATE: Part.OPTIMIZER}


def ask_budget(
    arm: Arm, *, steps: int, called: str = "plain", limit_seconds: float | None = None
) -> tuple[Budget, Around, float]:
    """The budget of an arm's plan, over so many steps and one evaluation; what else its bounds depend on; and the
    seconds that it takes to tell the length of an evaluation.

    Raises ArmFailed as Arm.ask does.
    """
    found = arm.ask("budget", limit_seconds, steps=steps)
    return Budget(arm=called, **found["spent"]), Around(**found["around"]), found["evaluating"]


def spending(trial: Trial, steps: int) -> dict[str, Any]:
    """spent: the fields of facts.trials.Budget but its arm; around: those of bounds.Around; evaluating: seconds that it
    takes to tell the length of an evaluation, by a part of it or, where nobody knows its length, by the whole.

    The steps are the trial's own next ones; it can go on to windows afterwards. A run that has trained no step yet is
    warmed up before. steps: fewer are taken where the planned run is shorter.
    """
    if trial.run.total_steps is not None:
        steps = min(steps, max(1, trial.run.total_steps - WARM_UP_STEPS))
    if not trial.run.steps:
        trial.window(WARM_UP_STEPS)
    saved_tensors = _saved_tensors(trial)
    trial.make_room(steps)
    clock = _Clock(trial.run)
    with observing(trial.run, clock):
        faults = _page_faults()
        window = trial.window(steps)
        faults = _page_faults() - faults
    taken = window["steps"]
    seconds = {part: clock.seconds[part] / taken for part in STEP - {Part.PYTHON}}
    # The parts lie apart from each other inside the window, so less than nothing can only be a rounding.
    seconds[Part.PYTHON] = max(0.0, window["seconds"] / taken - sum(seconds.values()))
    trial.evaluate(EVALUATION_SECONDS)  # the first one is slower, by far where it compiles the model once more
    begin = time.perf_counter()
    seconds[Part.EVALUATION] = trial.evaluate(EVALUATION_SECONDS)["seconds"]
    evaluating = time.perf_counter() - begin
    spent = {part.value: value for part, value in seconds.items()}
    around = replace(_around(trial.run, window["peak_bytes"]), saved_tensors=saved_tensors, page_faults=faults / taken)
    return {"spent": {**spent, "steps": taken}, "around": asdict(around), "evaluating": evaluating}


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


def _saved_tensors(trial: Trial) -> int | None:
    """That the forward passes of one step keep for their backward passes: about as many as there are operations. None
    where the job forbids to look, as torch.func.grad does."""
    saved = 0

    def pack(tensor: torch.Tensor) -> torch.Tensor:
        nonlocal saved
        saved += 1
        return tensor.detach()  # torch: the tensor itself would be kept alive by a circle of references

    try:
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
            trial.window(1)
    except RuntimeError as error:
        if "saved tensor" not in str(error):
            raise
        trial.begin_anew()  # the step was left in its middle
        trial.window(WARM_UP_STEPS)
        return None
    return saved


def _page_faults() -> int:
    """That this process has had without reading from a disk: pages of memory that the system gave it."""
    try:
        import resource  # not on Windows
    except ImportError:
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def _around(run: Run, peak_bytes: int) -> Around:
    machine, on_cpu = run.setup.machine, run.device.type == "cpu"
    there = machine.memory_bytes if on_cpu else machine.accelerator_memory_bytes
    return Around(
        on_cpu=on_cpu,
        cores=machine.cores,
        reads_beside=run.setup.loader.workers > 0,
        memory_full=there > 0 and peak_bytes > FULL * there,
    )
