"""The dry run of a schedule shows what the run will do, and changes nothing."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import torch
from torch.optim import lr_scheduler as torch_schedulers

from hasten.facts.job import Schedule
from hasten.training.schedule.schedule_trace import trace_schedule
from support import small_job


def test_a_trace_is_torchs_own():
    def one_cycle(optimizer, total_steps):
        return torch_schedulers.OneCycleLR(optimizer, 0.4, total_steps)

    job = small_job(optimizer=lambda params: torch.optim.AdamW(params), schedule=one_cycle)
    (trace,) = trace_schedule(job, total_steps=10, steps_per_epoch=5)

    optimizer = torch.optim.AdamW([torch.zeros(1)])
    scheduler, expected = one_cycle(optimizer, 10), []
    for _ in range(10):
        expected.append((optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["betas"][0]))
        optimizer.step()
        scheduler.step()
    assert list(zip(trace.rates, trace.momenta, strict=True)) == expected
    assert (trace.optimizer, trace.steps, trace.note) == ("AdamW", tuple(range(10)), "")


def test_epochs_and_evaluations_move_a_trace_where_they_would_the_run():
    halving = Schedule(partial(torch_schedulers.ExponentialLR, gamma=0.5), unit="epoch")
    (trace,) = trace_schedule(small_job(schedule=halving), total_steps=5, steps_per_epoch=2)
    assert trace.rates == (0.1, 0.1, 0.05, 0.05, 0.025)
    halving = Schedule(halving.build, unit="evaluation")
    valid = (torch.zeros(2, 6), torch.zeros(2))
    (trace,) = trace_schedule(small_job(schedule=halving, valid=valid, evaluate_every=3), total_steps=5)
    assert trace.rates == (0.1, 0.1, 0.1, 0.05, 0.05)
    assert trace.momenta == (0.0,) * 5


def test_what_depends_on_results_is_drawn_constant_and_says_so():
    job = small_job(schedule=torch_schedulers.ReduceLROnPlateau, valid=(torch.zeros(2, 6), torch.zeros(2)))
    (trace,) = trace_schedule(job, total_steps=4, steps_per_epoch=1)
    assert set(trace.rates) == {0.1}
    assert "depends on the evaluations" in trace.note


def test_a_trace_leaves_every_random_state_as_it_was():
    def states():
        return torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()

    def model():
        random.random()
        np.random.rand()
        return torch.nn.Linear(6, 3)

    before = states()
    trace_schedule(small_job(model=model), total_steps=3)
    assert states() == before
