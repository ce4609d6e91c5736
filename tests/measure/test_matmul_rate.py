from __future__ import annotations

import pytest
import torch

from hasten.measure.matmul_rate import MatrixRate, measure_matrix_rate, model_flops_utilization

RATE = MatrixRate(
    flops_per_second=1e12,
    slowest=0.9e12,
    fastest=1.1e12,
    stretches=7,
    size=1024,
    dtype="float32",
    device="cpu",
    threads=1,
)


def test_a_rate_says_its_spread_size_dtype_and_threads_and_draws_no_random_number():
    before = torch.get_rng_state()
    rate = measure_matrix_rate(torch.bfloat16, sizes=(64, 128))
    assert torch.equal(before, torch.get_rng_state())
    assert 0 < rate.slowest <= rate.flops_per_second <= rate.fastest
    assert rate.size in (64, 128)
    assert rate.stretches >= 3
    assert (rate.dtype, rate.device) == ("bfloat16", "cpu")
    assert rate.threads == torch.get_num_threads()


def test_utilization_is_the_share_of_the_measured_rate():
    assert model_flops_utilization(flops_per_sample=2e9, samples_per_second=200, rate=RATE) == pytest.approx(0.4)
    assert model_flops_utilization(flops_per_sample=2e9, samples_per_second=1000, rate=RATE) == pytest.approx(2.0)


@pytest.mark.gpu
def test_a_gpu_multiplies_faster_in_bfloat16():
    slow, fast = (measure_matrix_rate(dtype, "cuda") for dtype in (torch.float32, torch.bfloat16))
    assert fast.flops_per_second > slow.flops_per_second
    assert fast.threads is None
