"""LayerNorm with absent parameters, and with 16-bit and mixed dtypes."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels.normalization import add_layer_norm as module
from hasten.kernels.normalization.add_layer_norm import add_layer_norm, layer_norm

NEAR = {torch.float32: 1e-5, torch.bfloat16: 4e-2, torch.float16: 1e-2, torch.float64: 1e-10}
every_format = pytest.mark.parametrize("dtype", NEAR, ids=str)


@pytest.fixture(params=["compiled", "plain"])
def form(request, monkeypatch):
    if request.param == "plain":
        monkeypatch.setattr(module.CPP, "library", "there is no compiler here")
    elif why := module.CPP.why_plain():
        pytest.skip(why)


def drawn(*shape, dtype):
    return torch.randn(*shape, dtype=torch.float64).to(dtype).requires_grad_()


def composed(x, residual, weight, bias):
    total = x.double() + residual.double()
    weight, bias = (None if each is None else each.double() for each in (weight, bias))
    return total, functional.layer_norm(total, total.shape[-1:], weight, bias)


def gradients(function, given, upstream):
    """Of what is there."""
    outputs = function(*given)
    there = [each for each in given if each is not None]
    return torch.autograd.grad(
        outputs, there, [each.to(one.dtype) for each, one in zip(upstream, outputs, strict=True)]
    )


def check_near(given, dtype):
    upstream = [torch.randn(given[0].shape, dtype=torch.float64) for _ in range(2)]
    for one, other in zip(add_layer_norm(*given), composed(*given), strict=True):
        assert one.dtype == dtype
        assert_close(one.double(), other, rtol=NEAR[dtype], atol=4 * NEAR[dtype])
    there = [each for each in given if each is not None]
    for leaf, one, other in zip(
        there, gradients(add_layer_norm, given, upstream), gradients(composed, given, upstream), strict=True
    ):
        assert one.dtype == leaf.dtype
        assert_close(one.double(), other.double(), rtol=NEAR[dtype], atol=16 * NEAR[dtype])


@every_format
@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("biased", [True, False])
def test_weight_and_bias_may_be_absent(form, dtype, weighted, biased):
    torch.manual_seed(0)
    x, residual = drawn(3, 50, 40, dtype=dtype), drawn(3, 50, 40, dtype=dtype)
    weight, bias = drawn(40, dtype=dtype) if weighted else None, drawn(40, dtype=dtype) if biased else None
    check_near((x, residual, weight, bias), dtype)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_only_the_parameters_may_be_float32(form, dtype):
    torch.manual_seed(0)
    weight, bias = drawn(40, dtype=torch.float32), drawn(40, dtype=torch.float32)
    check_near((drawn(70, 40, dtype=dtype), drawn(70, 40, dtype=dtype), weight, bias), dtype)


@pytest.mark.parametrize("other", [torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_a_sum_has_the_dtype_that_torch_gives_it(form, other):
    torch.manual_seed(0)
    wide = torch.promote_types(torch.float32, other)
    for formats in ((torch.float32, other), (other, torch.float32)):
        given = [drawn(70, 40, dtype=each) for each in formats]
        check_near((*given, drawn(40, dtype=wide), drawn(40, dtype=wide)), wide)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_row_of_one_number_is_the_bias_and_has_no_gradient(form, dtype):
    x, weight, bias = torch.randn(5, 1, dtype=dtype, requires_grad=True), torch.ones(1), torch.full((1,), 3.0)
    normed = layer_norm(x, weight, bias)
    assert torch.equal(normed, torch.full_like(normed, 3.0))
    (of_x,) = torch.autograd.grad(normed.sum(), x)
    assert_close(of_x, torch.zeros_like(x))


@pytest.mark.parametrize("shape", [(0, 8), (2, 0, 8), (8,), (3, 0)], ids=str)
def test_no_rows_one_row_and_no_columns(form, shape):
    given = (*(drawn(*shape, dtype=torch.float32) for _ in range(2)), *(drawn(shape[-1], dtype=torch.float32),) * 2)
    check_near(given, torch.float32)


def test_either_output_alone_has_its_gradient(form):
    torch.manual_seed(0)
    x, residual, weight, bias = given = [drawn(60, 33, dtype=torch.float32) for _ in range(2)] + [
        drawn(33, dtype=torch.float32) for _ in range(2)
    ]
    upstream = torch.randn(60, 33)
    of_sum = torch.autograd.grad(add_layer_norm(*given)[0], given, upstream, allow_unused=True)
    assert all(torch.equal(each, upstream) for each in of_sum[:2])
    assert of_sum[2:] == (None, None)
    found = torch.autograd.grad(add_layer_norm(*given)[1], given, upstream)
    wanted = torch.autograd.grad(composed(*given)[1], given, upstream.double())
    assert_close(found, wanted, rtol=1e-5, atol=1e-4)
    alone = torch.autograd.grad(layer_norm(x + residual, weight, bias), given, upstream)
    assert_close(alone, found, rtol=0, atol=0)


def test_nan_and_infinity_stay_in_their_row(form):
    x = torch.randn(4, 40)
    x[1, 3], x[2, 7] = torch.nan, torch.inf
    assert layer_norm(x).isnan().all(dim=1).tolist() == [False, True, True, False]
    assert layer_norm(x)[[0, 3]].isfinite().all()


def test_a_wrong_shape_is_refused():
    x = torch.randn(4, 8)
    with pytest.raises(ValueError, match=r"weight has the shape \(7,\); for this x it needs \(8,\)"):
        layer_norm(x, torch.ones(7))
    with pytest.raises(ValueError, match=r"bias has the shape \(1, 8\)"):
        add_layer_norm(x, x, None, torch.ones(1, 8))
    with pytest.raises(ValueError, match=r"x has the shape \(4, 8\), and residual \(8,\)"):
        add_layer_norm(x, x[0])
