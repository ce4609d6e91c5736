"""Where a step's seconds and memory go."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.optim.lr_scheduler import OneCycleLR

from hasten.facts.plan import make_plan
from hasten.measure.memory_profile import Kind
from hasten.tuning.job_profile import FEWEST, MOST, profile_job
from support import small_job
from support.doctor.faulty_model_job import jagged_job


def test_a_profile_counts_what_can_be_counted_and_times_the_rest():
    job = small_job(
        epochs=None, max_steps=1, schedule=lambda optimizer, total_steps: OneCycleLR(optimizer, 0.1, total_steps)
    )
    found = profile_job(job, make_plan(microbatch=4))
    assert found.parameters == 6 * 3 + 3
    assert found.device == "cpu"
    # Forward, and one product backward: the gradient of the weight; the input needs none.
    assert found.flops.flops_per_sample == 2 * (2 * 6 * 3)
    assert found.memory.by_kind[Kind.PARAMETERS] == 4 * 21
    assert sum(found.memory.by_kind.values()) == found.memory.peak_bytes
    assert FEWEST <= found.times.steps <= MOST
    assert 0 < found.times.low <= found.times.median_seconds <= found.times.high
    assert 0 <= found.times.data_wait_share <= 1
    assert found.utilization is not None
    assert found.utilization > 0


def test_a_profile_does_without_the_work_that_cannot_be_counted():
    found = profile_job(jagged_job())
    assert (found.flops.flops_per_sample, found.utilization) == (None, None)
    assert "Multiple dispatch failed" in found.flops.failed
    assert found.times.median_seconds > 0


@pytest.mark.gpu
def test_the_random_state_of_the_device_is_left_alone_too():
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
    before = torch.cuda.get_rng_state()
    profile_job(small_job(model=lambda: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)), device="cuda"))
    assert torch.equal(torch.cuda.get_rng_state(), before)
