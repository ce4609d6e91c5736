"""A run tells an observer where it is inside its steps, and nobody afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from hasten.facts.plan import Plan, make_plan
from hasten.training.probes.brief_run import observing
from hasten.training.run import Run
from hasten.training.step_parts.window import Phase
from support import small_job

PASS = [Phase.READY, Phase.FORWARD, Phase.BACKWARD]


def observed_in(run: Run, steps: int) -> list[Phase]:
    found: list[Phase] = []
    with observing(run, found.append):
        take(run, steps)
    return found


def take(run: Run, steps: int) -> None:
    wanted = run.steps + steps
    for batch in run.epoch_batches():
        run.step(batch)
        if run.steps == wanted:
            break


@pytest.mark.parametrize(
    ("plan", "step"),
    [
        (Plan(), [*PASS, Phase.UPDATE]),
        (make_plan(microbatch=4), [*PASS, *PASS, Phase.UPDATE]),
        (make_plan(channels_last=True), [Phase.PLACING, Phase.PLACED, *PASS, Phase.UPDATE]),
    ],
    ids=str,
)
def test_every_boundary_of_a_step_is_observed_in_its_order_from_the_first_step_on(plan, step):
    with Run(small_job(), plan) as run:
        assert observed_in(run, 3) == step * 3


def test_nothing_is_observed_afterwards():
    found: list[Phase] = []
    with Run(small_job()) as run:
        with observing(run, found.append):
            take(run, 1)
        seen = len(found)
        take(run, 1)
        assert len(found) == seen


def test_an_exception_of_the_observer_leaves_a_run_that_trains_on():
    def failing(phase: Phase) -> Any:
        if phase is Phase.FORWARD:
            raise ZeroDivisionError

    with Run(small_job()) as run:
        take(run, 1)
        with pytest.raises(ZeroDivisionError), observing(run, failing):
            take(run, 1)
        take(run, 1)
        assert run.steps == 2
