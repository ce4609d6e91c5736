"""A run tells where it is inside its steps, while somebody asks and not afterwards."""

from __future__ import annotations

from typing import Any

import pytest

from hasten.facts.plan import Plan, make_plan
from hasten.training.run import Run
from hasten.training.step_parts.phases import Phase, phases_told
from support import small_job

PASS = [Phase.READY, Phase.FORWARD, Phase.BACKWARD]


def told_by(run: Run, steps: int) -> list[Phase]:
    found: list[Phase] = []
    with phases_told(run, found.append):
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
def test_every_boundary_of_a_step_is_told_in_its_order_from_the_first_step_on(plan, step):
    with Run(small_job(), plan) as run:
        assert told_by(run, 3) == step * 3


def test_nothing_is_told_afterwards_and_the_run_is_as_it_was():
    told: list[Phase] = []
    with Run(small_job()) as run:
        take(run, 1)
        before = dict(vars(run._step))
        with phases_told(run, told.append):
            take(run, 1)
        seen = len(told)
        take(run, 1)
        assert len(told) == seen
        assert run._step._forward is before["_forward"]
        assert vars(run._step).keys() == before.keys()
        assert not {"_placed", "step"} & vars(run).keys()


def test_a_first_forward_pass_that_was_watched_is_the_usual_one_afterwards():
    with Run(small_job()) as run:
        first = run._step._forward
        told_by(run, 1)
        usual = run._step._forward
        take(run, 1)
        assert usual is run._step._forward
        assert usual != first


def test_what_fails_inside_leaves_the_run_as_it_was():
    def failing(phase: Phase) -> Any:
        if phase is Phase.FORWARD:
            raise ZeroDivisionError

    with Run(small_job()) as run:
        take(run, 1)
        before = set(vars(run._step))
        with pytest.raises(ZeroDivisionError), phases_told(run, failing):
            take(run, 1)
        assert set(vars(run._step)) == before
        take(run, 1)
        assert run.steps == 2
