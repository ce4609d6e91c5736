"""A few steps of a job, taken to measure them and dropped; and an observer of where a run is inside its steps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

# One function for every room; `tune`, which may not import `data`, imports it from here.
from hasten.data.order.randomness import undisturbed as undisturbed
from hasten.facts.job import Job
from hasten.facts.machine import read_machine
from hasten.facts.plan import Plan
from hasten.training.run import Run
from hasten.training.setup.prepared_job import device_of
from hasten.training.step_parts.window import Observer

RATE = 1e-12  # moves no weight far; at 0 some optimizers skip work, and nearer to it are denormal numbers


@contextmanager
def brief_run(job: Job, plan: Plan | None, *, name: str, steps: int) -> Iterator[Run]:
    """A run of the job by the plan that can take so many steps. Its own length, its schedule and early stopping are not
    used: they may depend on a length that this run does not have. So every learning rate is next to nothing: the job's
    own rates may diverge without its schedule, and the time of a step does not depend on them.

    Random states, those of the device included, are restored; what the loss holds is not. Raises what building or
    training the job raises.
    """
    trial = replace(job, schedule=None, stop=None, keep=None, epochs=None, max_steps=steps)
    plan = plan or Plan()
    unscheduled = replace(plan, choices=tuple(item for item in plan.choices if item.choice.technique != "schedule"))
    with undisturbed(device_of(job, read_machine())), Run(trial, unscheduled, name=name) as run:
        for group in (group for optimizer in run.optimizers for group in optimizer.param_groups):
            rate = group.get("lr")
            if isinstance(rate, Tensor):
                group["lr"] = torch.full_like(rate, RATE)  # a new one, as the job may use the same in its training
            elif rate is not None:  # else the optimizer finds its own
                group["lr"] = RATE
        yield run


def whole_step(run: Run) -> Callable[[], None]:
    """A function that takes one whole optimizer step each time it is called."""
    batches = run.batches()

    def step() -> None:
        for batch in batches:
            run.step(batch)
            if run.window_closed:
                break

    return step


@contextmanager
def observing(run: Run, observer: Observer) -> Iterator[None]:
    """Inside, the observer is called at every boundary of a step. An exception of it passes through the step, as one of
    the job's loss does."""
    observed = run.built.placement, run.built.step.window
    before = [each.observer for each in observed]
    try:
        for each in observed:
            each.observer = observer
        yield
    finally:
        for each, own in zip(observed, before, strict=True):
            each.observer = own
