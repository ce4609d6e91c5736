"""A few steps of a job, taken to look at them and thrown away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

import torch
from torch import Tensor

from hasten.facts.job import Job
from hasten.facts.machine import read_machine
from hasten.facts.plan import Plan
from hasten.training.probes.quiet import undisturbed
from hasten.training.run import Run
from hasten.training.setup.prepared_job import device_of

RATE = 1e-12  # moves no weight far; at 0 some optimizers leave work out, and nearer to it are denormal numbers


@contextmanager
def brief_run(job: Job, plan: Plan | None, *, name: str, steps: int) -> Iterator[Run]:
    """A run of the job by the plan that can take so many steps. Its own length, its schedule and early stopping play no
    part: they may depend on a length that this run does not have. So every learning rate is next to nothing: the job's
    own ones may be bearable only as its schedule scales them, and what a step takes does not depend on them.

    Random states, those of the device included, are put back; what the loss holds is not. Raises what building or
    training the job raises.
    """
    trial = replace(job, schedule=None, stop=None, epochs=None, max_steps=steps)
    plan = plan or Plan()
    unscheduled = replace(plan, choices=tuple(item for item in plan.choices if item.choice.technique != "schedule"))
    with undisturbed(device_of(job, read_machine())), Run(trial, unscheduled, name=name) as run:
        _lower_rates(run)
        yield run


def _lower_rates(run: Run) -> None:
    for optimizer in run.optimizers:
        for group in optimizer.param_groups:
            rate = group.get("lr")
            if isinstance(rate, Tensor):
                group["lr"] = torch.full_like(rate, RATE)  # a new one, as the job may use the same in its training
            elif rate is not None:  # else the optimizer finds its own
                group["lr"] = RATE


def whole_step(run: Run) -> Callable[[], None]:
    """A function that takes one whole optimizer step each time it is called."""
    batches = run.batches()

    def step() -> None:
        for batch in batches:
            run.step(batch)
            if run.window_closed:
                break

    return step
