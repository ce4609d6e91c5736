"""A few steps of a job, taken to look at them and thrown away."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from hasten.facts.job import Job
from hasten.facts.machine import read_machine
from hasten.facts.plan import Plan
from hasten.training.build import device_of
from hasten.training.quiet import undisturbed
from hasten.training.run import Run


@contextmanager
def brief_run(job: Job, plan: Plan | None, *, name: str, steps: int) -> Iterator[Run]:
    """A run of the job by the plan that can take so many steps. Its own length, its schedule and early stopping play no
    part: they may depend on a length that this run does not have.

    Random states, those of the device included, are put back; what the loss holds is not. Raises what building or
    training the job raises.
    """
    trial = replace(job, schedule=None, stop=None, epochs=None, max_steps=steps)
    plan = plan or Plan()
    unscheduled = replace(plan, choices=tuple(item for item in plan.choices if item.choice.technique != "schedule"))
    with undisturbed(device_of(job, read_machine())), Run(trial, unscheduled, name=name) as run:
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
