"""State that a job declares: checkpoints hold it, and evaluations, failed and retried steps leave it as it was."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import hasten
from hasten.errors import JobError, OutOfMemory
from hasten.facts.events import Trained
from support import small_job
from support.training.collected_events import Collected
from support.training.resumed_state import check_goes_on, losses


class Distillation(nn.Module):
    """A loss that is a module: its teacher follows the model."""

    def __init__(self, fails_at: int = 0, error: type[Exception] = ValueError) -> None:
        super().__init__()
        self.teacher = nn.Linear(6, 3).requires_grad_(False)
        nn.init.constant_(self.teacher.weight, 0.5)
        nn.init.zeros_(self.teacher.bias)
        self._calls, self._fails_at, self._error = count(1), fails_at, error

    def forward(self, model: nn.Module, batch: Any) -> Tensor:
        prediction = model(batch[0])
        loss = functional.mse_loss(prediction, self.teacher(batch[0]))
        with torch.no_grad():
            for held, own in zip(self.teacher.parameters(), model.parameters(), strict=True):
                held.lerp_(own, 0.3)
        if next(self._calls) == self._fails_at:
            raise self._error("planted")
        return loss


def distilled(**changes: Any) -> hasten.Job:
    return small_job(loss=Distillation(), log_every=1, **changes)


def closing_over_a_teacher() -> hasten.Job:
    made = Distillation()

    def loss(model: nn.Module, batch: Any) -> Tensor:
        return made(model, batch)

    return small_job(loss=loss, state={"distillation": made})


def drawing(make: Callable[[], Any], draw: Callable[[Any], float]) -> Callable[[], hasten.Job]:
    def job() -> hasten.Job:
        generator = make()

        def loss(model: nn.Module, batch: Any) -> Tensor:
            return functional.cross_entropy(model(batch[0]), batch[1]) * (1 + draw(generator))

        return small_job(loss=loss, state={"noise": generator})

    return job


GENERATORS = {
    "torch": drawing(lambda: torch.Generator().manual_seed(5), lambda held: float(torch.rand((), generator=held))),
    "numpy": drawing(lambda: np.random.default_rng(5), lambda held: float(held.random())),
}
JOBS = {"a loss that is a module": distilled, "a teacher": closing_over_a_teacher, **GENERATORS}


@pytest.mark.trap(36)
@pytest.mark.parametrize("make", JOBS.values(), ids=JOBS)
def test_declared_state_resumes_exactly(tmp_path, make):
    check_goes_on(make, tmp_path)


@pytest.mark.trap(36)
@pytest.mark.parametrize("make", JOBS.values(), ids=JOBS)
def test_how_often_a_run_evaluates_does_not_change_declared_state(make):
    found = list[list[float]]()
    for every in (None, 1):
        events, plain = Collected(), replace(make(), log_every=1)
        hasten.train(replace(plain, valid=plain.train, evaluate_every=every), receivers=[events])
        found.append([event.loss for event in events.events if isinstance(event, Trained)])
    assert found[0] == found[1]


@pytest.mark.trap(36)
def test_a_step_that_fails_leaves_declared_state_as_the_step_before_left_it():
    failing, whole = Distillation(fails_at=4), Distillation()
    with hasten.prepare(small_job(loss=failing)) as run:
        run.keep_window_starts()
        with pytest.raises(ValueError, match="planted"):
            losses(run)
        assert run.built.windows.restore()
    with hasten.prepare(small_job(loss=whole)) as run:
        for batch, _ in zip(run.batches(), range(3), strict=False):
            run.step(batch)
    assert torch.equal(failing.teacher.weight, whole.teacher.weight)


@pytest.mark.fault("out of device memory mid-run")
def test_a_batch_is_not_split_where_declared_state_would_change_for_each_part():
    job = small_job(loss=Distillation(fails_at=3, error=torch.OutOfMemoryError))
    with pytest.raises(OutOfMemory, match="changes the declared state of loss, and would change it once for each part"):
        hasten.train(job, receivers=[])


@pytest.mark.parametrize(
    ("state", "says"),
    [
        ({"teacher": 3}, "'teacher' is 3"),
        ({"a.b": nn.Linear(1, 1)}, "the name 'a.b'"),
        ([nn.Linear(1, 1)], "write a dictionary"),
    ],
)
def test_what_cannot_be_declared_is_refused(state, says):
    with pytest.raises(JobError, match=says):
        small_job(state=state)


def test_an_evaluation_computes_its_own_loss_where_the_job_has_one():
    job = small_job(eval_loss=lambda model, batch: model(batch[0]).sum() * 0 + 7.0)
    with hasten.prepare(replace(job, valid=job.train)) as run:
        assert run.evaluate().results == {"loss": 7.0}
