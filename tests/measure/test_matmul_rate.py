from __future__ import annotations

import pytest
import torch

from hasten.measure.matmul_rate import measure_matrix_rate


def test_a_rate_says_its_spread_size_and_dtype_and_draws_no_random_number():
    before = torch.get_rng_state()
    rate = measure_matrix_rate(torch.bfloat16, sizes=(64, 128))
    assert torch.equal(before, torch.get_rng_state())
    assert 0 < rate.slowest <= rate.flops_per_second <= rate.fastest
    assert rate.size in (64, 128)
    assert rate.stretches >= 3
    assert rate.dtype == "bfloat16"


@pytest.mark.gpu
def test_a_gpu_multiplies_faster_in_bfloat16():
    slow, fast = (measure_matrix_rate(dtype, "cuda") for dtype in (torch.float32, torch.bfloat16))
    assert fast.flops_per_second > slow.flops_per_second
