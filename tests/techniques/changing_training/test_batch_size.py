"""Another batch size: what follows from it, and what stays as the job says."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

import hasten
from hasten.facts.plan import make_plan
from hasten.techniques.batch_size import TECHNIQUE
from hasten.techniques.contract import No
from hasten.training.run import Run
from support import laptop, setup_of, small_job

ROWS = (torch.randn(8, 6), torch.zeros(8, dtype=torch.long))


def offered(samples: int = 40, **job: Any) -> list[Any]:
    rows = (torch.zeros(samples, 6), torch.zeros(samples, dtype=torch.long))
    setup = setup_of(nn.Linear(6, 3), ROWS, laptop(), **({"train": rows} | job))
    return [choice.value for choice in TECHNIQUE.candidates(setup)]


def batches(size: int | None = None, **changes: Any) -> list[torch.Tensor]:
    """The labels of every batch of the first epoch; of the job's own size without one."""
    with Run(small_job(**changes), make_plan(batch_size=size) if size else None) as run:
        return [labels for _, labels in run.epoch_batches()]


def test_twice_and_half_of_the_batch_are_tried():
    assert offered(batch_size=8) == [16, 4]
    assert offered(batch_size=5) == [10, 3]


def test_a_batch_that_no_epoch_could_fill_is_not_tried():
    assert offered(samples=15, batch_size=8) == [4]
    assert offered(samples=16, batch_size=8) == [16, 4]


def test_one_batch_of_one_sample_has_no_neighbours():
    setup = setup_of(nn.Linear(6, 3), ROWS, laptop(), train=(torch.zeros(1, 6), torch.zeros(1)), batch_size=1)
    assert TECHNIQUE.applies(setup) == No("an epoch has only one sample")


def test_the_order_of_samples_stays_the_same():
    assert [len(batch) for batch in batches(16)] == [16, 16, 8]
    assert torch.cat(batches(16)).equal(torch.cat(batches()))


@pytest.mark.trap(18)
def test_the_planned_steps_and_a_schedule_made_for_them_follow():
    totals = list[int]()

    def schedule(optimizer: Any, total_steps: int) -> OneCycleLR:
        totals.append(total_steps)
        return OneCycleLR(optimizer, 0.1, total_steps, cycle_momentum=False)

    trained = hasten.train(small_job(schedule=schedule), make_plan(batch_size=16))
    assert (totals, trained.steps) == ([6], 6)


def test_it_equals_a_job_with_that_batch_bit_for_bit():
    planned, written = hasten.train(small_job(), make_plan(batch_size=16)), hasten.train(small_job(batch_size=16))
    assert planned.weights["weight"].equal(written.weights["weight"])


def test_parts_and_samples_are_of_the_new_batch():
    with Run(small_job(), make_plan(batch_size=16, accumulation=2)) as run:
        assert (run.built.fingerprint.batch_size, run.built.batch_size) == (8, 16)
        assert len(run.setup.sample[1]) == 16
        sizes = [len(labels) for _, labels in run.epoch_batches()]
    assert sizes == [8, 8, 8, 8, 8]
