from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from hasten.errors import InvalidMeasurement
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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_rate_says_its_spread_size_dtype_and_threads(dtype):
    rate = measure_matrix_rate(dtype, sizes=(64, 128))
    assert 0 < rate.slowest <= rate.flops_per_second <= rate.fastest
    assert rate.size in (64, 128)
    assert rate.stretches >= 3
    assert (rate.dtype, rate.device) == (str(dtype).removeprefix("torch."), "cpu")
    assert rate.threads == torch.get_num_threads()


def test_a_rate_leaves_the_random_numbers_alone():
    before = torch.get_rng_state()
    measure_matrix_rate(torch.float32, sizes=(32,))
    assert torch.equal(before, torch.get_rng_state())


def test_no_size_is_an_error():
    with pytest.raises(InvalidMeasurement, match="no matrix size"):
        measure_matrix_rate(torch.float32, sizes=())


def test_utilization_is_the_share_of_the_measured_rate():
    assert model_flops_utilization(flops_per_sample=2e9, samples_per_second=200, rate=RATE) == pytest.approx(0.4)
    assert model_flops_utilization(flops_per_sample=2e9, samples_per_second=1000, rate=RATE) == pytest.approx(2.0)


@pytest.mark.trap(51)
@pytest.mark.parametrize("number", [math.nan, math.inf, 0.0, -1.0])
def test_an_impossible_input_gives_no_utilization(number):
    with pytest.raises(InvalidMeasurement, match="flops_per_sample"):
        model_flops_utilization(flops_per_sample=number, samples_per_second=1, rate=RATE)
    with pytest.raises(InvalidMeasurement, match="samples_per_second"):
        model_flops_utilization(flops_per_sample=1, samples_per_second=number, rate=RATE)
    with pytest.raises(InvalidMeasurement, match=r"rate\.flops_per_second"):
        model_flops_utilization(flops_per_sample=1, samples_per_second=1, rate=replace(RATE, flops_per_second=number))


@pytest.mark.gpu
def test_a_gpu_multiplies_faster_in_bfloat16():
    slow, fast = (measure_matrix_rate(dtype, "cuda") for dtype in (torch.float32, torch.bfloat16))
    assert fast.flops_per_second > slow.flops_per_second
    assert fast.threads is None
