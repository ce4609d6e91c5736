"""Softmax over any dimension, and at the edges."""

from __future__ import annotations

import pytest
import torch
from torch import nan
from torch.testing import assert_close

from hasten.kernels.softmax.softmax import softmax

INF = torch.inf
formats = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)  # the last is plain


def value_and_gradient(function, x, upstream, *given):
    leaf = x.detach().clone().requires_grad_()
    value = function(leaf, *given)
    return value.detach(), *torch.autograd.grad(value, leaf, upstream)


def check(x, dim):
    """Beside what torch makes in float64, rounded."""
    upstream = torch.randn(x.shape).to(x.dtype)
    found = value_and_gradient(softmax, x, upstream, dim)
    wanted = value_and_gradient(torch.softmax, x.double(), upstream.double(), dim)
    loose = {"rtol": 2e-2, "atol": 4e-3} if x.dtype == torch.bfloat16 else {"rtol": 1e-5, "atol": 1e-7}
    assert [each.dtype for each in found] == [x.dtype] * 2
    assert_close(found, wanted, check_dtype=False, equal_nan=True, **loose)


@formats
@pytest.mark.parametrize(
    ("shape", "dim"),
    [((), 0), ((), -1), ((5,), 0), ((4, 7), 0), ((2, 3, 5, 7), 1), ((2, 3, 5, 7), -2), ((2, 8, 33), 2)],
)
def test_any_dimension_is_computed(dtype, shape, dim):
    torch.manual_seed(0)
    check(torch.randn(shape).to(dtype), dim)


@formats
@pytest.mark.parametrize("shape", [(0, 5), (5, 0), (0,)])
def test_empty_tensors_give_empty_tensors(dtype, shape):
    check(torch.zeros(shape, dtype=dtype), -1)


@formats
@pytest.mark.parametrize("width", [1, 15, 17, 64, 1025, 5000])
def test_any_width_is_computed(dtype, width):
    torch.manual_seed(0)
    check(3 * torch.randn(3, width).sort()[0].to(dtype), -1)  # every block has a greater one than all before


@formats
def test_numbers_far_apart_and_far_from_0_do_not_overflow(dtype):
    check(torch.tensor([[1e4, 1e4 - 64, -1e4], [-3e38, 3e38, 0], [-1e4, -1e4 + 64, -1e4]]).to(dtype), -1)


@formats
def test_masked_elements_get_0_and_no_gradient(dtype):
    torch.manual_seed(0)
    x = torch.randn(4, 3000).to(dtype)
    x[0, :2500], x[1, 1:], x[2, ::2] = -INF, -INF, -INF  # more than a block, before and behind what is there
    check(x, -1)
    assert softmax(x)[1, 0] == 1
    assert not softmax(x)[x.isneginf()].any()


@formats
def test_infinite_numbers_and_nan_give_what_torch_gives(dtype):
    rows = [[-INF] * 3, [INF, 0, 1], [1, INF, INF], [0, nan, -INF], [nan] * 3, [-INF, nan, -INF]]
    check(torch.tensor(rows).to(dtype), -1)


def test_a_missing_dimension_is_refused():
    with pytest.raises(IndexError):
        softmax(torch.zeros(3, 4), 2)
