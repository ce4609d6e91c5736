"""A few steps of a job, thrown away: they run at next to no rate, as its schedule plays no part."""

from __future__ import annotations

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR

import hasten
from hasten.training.probes.brief_run import RATE, brief_run, whole_step
from support.doctor.faulty_model_job import job


def test_a_job_that_only_its_schedule_keeps_from_diverging_can_be_looked_at():
    diverging = job(
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e30),
        schedule=hasten.Schedule(lambda optimizer: LambdaLR(optimizer, lambda step: 1e-32), unit="step"),
    )
    with brief_run(diverging, None, name="", steps=5) as run:
        step = whole_step(run)
        for _ in range(5):
            step()
        assert run.steps == 5
        assert all(each.isfinite().all() for each in run.model.parameters())


def test_a_rate_that_is_a_tensor_stays_one_and_the_jobs_own_is_not_written_to():
    own = torch.tensor(0.5)
    with brief_run(job(optimizer=lambda given: torch.optim.Adam(given, lr=own)), None, name="", steps=1) as run:
        rates = [group["lr"] for optimizer in run.optimizers for group in optimizer.param_groups]
        assert all(isinstance(rate, torch.Tensor) and rate.item() == pytest.approx(RATE) for rate in rates)
    assert own.item() == 0.5


def test_a_rate_that_an_optimizer_finds_itself_stays_open():
    class Self(torch.optim.SGD):
        def step(self, closure=None):  # pyright: ignore[reportIncompatibleMethodOverride]
            assert all(group["lr"] is None for group in self.param_groups)

    def optimizer(parameters):
        made = Self(parameters, lr=0.1)
        made.param_groups[0]["lr"] = None
        return made

    with brief_run(job(optimizer=optimizer), None, name="", steps=1) as run:
        whole_step(run)()
