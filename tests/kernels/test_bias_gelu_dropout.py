"""What is dropped is decided by a seed: forward and backward, by however many threads, the same; and it is as random as
it should be."""

from __future__ import annotations

import shutil

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close
from torch.utils.checkpoint import checkpoint

from hasten.kernels.activation.bias_gelu_dropout import CPP, bias_gelu_dropout

needs_a_compiler = pytest.mark.skipif(shutil.which("c++") is None, reason="needs a C++ compiler")
FORMATS = [torch.float64, torch.float32, torch.bfloat16]  # the first has the plain form
every_format = pytest.mark.parametrize("dtype", FORMATS, ids=str)


def kept(rows=50, width=200, *, p=0.3, seed=None, dtype=torch.float32):
    """Which of these numbers are kept: none is 0 before."""
    return bias_gelu_dropout(torch.full((rows, width), 4.0, dtype=dtype), None, p, seed=seed) != 0


def seed_of(number):
    return torch.tensor(number, dtype=torch.int64)


@needs_a_compiler
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_is_dropped_follows_from_the_seed_and_the_place_alone(dtype):
    assert CPP.why_plain() is None
    threads, whole = torch.get_num_threads(), kept(300, 1000, seed=seed_of(7), dtype=dtype)
    try:
        for number in (1, 3):
            torch.set_num_threads(number)
            for rows, width in ((300, 1000), (299, 63), (1, 1)):
                assert torch.equal(kept(rows, width, seed=seed_of(7), dtype=dtype), whole[:rows, :width])
    finally:
        torch.set_num_threads(threads)


@needs_a_compiler
@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("seed", [0, 2**40 + 3, -(2**63)])
def test_what_is_dropped_is_independent_of_what_is_dropped_nearby(seed, p):
    """Products of deviations have the mean 0, within five standard deviations."""
    mask, other_seed = ((~kept(500, 640, p=p, seed=seed_of(each))).double() - p for each in (seed, seed + 1))
    for name, one, other in (
        ("the next column", mask[:, 1:], mask[:, :-1]),
        ("16 columns on", mask[:, 16:], mask[:, :-16]),
        ("the next row", mask[1:], mask[:-1]),
        ("the next seed", mask, other_seed),
    ):
        assert (one * other).mean().abs() < 5 * p * (1 - p) / one.numel() ** 0.5, name


@every_format
def test_backward_drops_what_forward_dropped(dtype):
    x = torch.full((70, 130), 2.0, dtype=dtype, requires_grad=True)
    y = bias_gelu_dropout(x, None, 0.4)
    y.sum().backward()
    assert torch.equal(x.grad != 0, y != 0)
    assert 0 < (y != 0).double().mean() < 1
    whole = x.detach().clone().requires_grad_()
    bias_gelu_dropout(whole, None, training=False).sum().backward()
    for found, undropped in ((y.detach(), functional.gelu(whole.detach())), (x.grad, whole.grad)):
        assert_close(found[y != 0], (undropped / 0.6)[y != 0], rtol=2e-2, atol=0)


@every_format
@pytest.mark.parametrize("p", [0.01, 0.1, 0.5, 0.9])
def test_the_share_that_is_dropped_is_p(p, dtype):
    """Within five standard deviations of the binomial distribution: one time in two million it is outside."""
    count = 400 * 500
    dropped = (~kept(400, 500, p=p, seed=seed_of(11), dtype=dtype)).sum()
    assert abs(dropped - count * p) < 5 * (count * p * (1 - p)) ** 0.5


@needs_a_compiler
@every_format
def test_torchs_seed_decides_the_mask_and_each_call_draws_another(dtype):
    torch.manual_seed(5)
    first, second = kept(dtype=dtype), kept(dtype=dtype)
    torch.manual_seed(5)
    assert torch.equal(kept(dtype=dtype), first)
    assert torch.equal(kept(dtype=dtype), second)
    assert not torch.equal(first, second)
    torch.manual_seed(6)
    assert not torch.equal(kept(dtype=dtype), first)


@pytest.mark.parametrize("use_reentrant", [True, False])
def test_a_recomputed_checkpoint_drops_the_same(use_reentrant):
    x, bias = torch.randn(20, 90), torch.randn(90)
    found = []
    for through in (lambda f, *given: f(*given), lambda f, *given: checkpoint(f, *given, use_reentrant=use_reentrant)):
        torch.manual_seed(1)
        leaves = x.clone().requires_grad_(), bias.clone().requires_grad_()
        y = through(lambda x, bias: bias_gelu_dropout(x * 2, bias, 0.5), *leaves)
        torch.rand(())  # the state has moved on
        y.square().sum().backward()
        found.append([y.detach(), *(each.grad for each in leaves)])
    assert all(map(torch.equal, *found))


@pytest.mark.parametrize("approximate", ["none", "tanh"])
@pytest.mark.parametrize("options", [{"p": 0}, {"p": 0.9, "training": False}], ids=str)
@every_format
def test_without_dropout_it_is_gelu_and_draws_nothing(options, approximate, dtype):
    # Multiples of 1/16: their sums are exact in bfloat16, in which the plain form adds.
    x, bias = ((torch.randn(each) * 16).round().to(dtype) / 16 for each in ((7, 50), (50,)))
    before = torch.get_rng_state()
    found = bias_gelu_dropout(x, bias, approximate=approximate, **options)
    assert torch.equal(torch.get_rng_state(), before)
    wanted = functional.gelu(x.double() + bias, approximate=approximate)
    assert_close(found.double(), wanted, rtol=torch.finfo(dtype).eps, atol=1e-6)


@every_format
def test_with_p_1_the_result_is_zero(dtype):
    x, bias = (torch.randn(each).to(dtype).requires_grad_() for each in ((6, 70), (70,)))
    before = torch.get_rng_state()
    y = bias_gelu_dropout(x, bias, 1)
    assert torch.equal(torch.get_rng_state(), before)
    y.sum().backward()
    assert not any(each.count_nonzero() for each in (y, x.grad, bias.grad))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_more_dimensions_are_rows_and_a_bias_may_have_another_dtype(dtype):
    """As under autocast, where a parameter stays in float32."""
    x, bias = torch.randn(3, 4, 5, 40).to(dtype).requires_grad_(), torch.randn(40, requires_grad=True)
    y = bias_gelu_dropout(x, bias, 0.1, seed=seed_of(2))
    y.sum().backward()
    assert (y.dtype, x.grad.dtype, bias.grad.dtype) == (dtype, dtype, torch.float32)
    rows = bias_gelu_dropout(x.detach().view(60, 40), bias.detach(), 0.1, seed=seed_of(2))
    assert torch.equal(y.detach().view(60, 40), rows)
    assert_close(bias.grad, x.grad.float().sum((0, 1, 2)), rtol=2e-2, atol=2e-2)


def test_without_a_compiler_the_result_is_the_same_but_for_what_is_dropped(monkeypatch):
    x, bias = torch.randn(9, 100), torch.randn(100)
    wanted = bias_gelu_dropout(x, bias, 0)
    monkeypatch.setattr(CPP, "library", "there is no compiler here")
    assert CPP.why_plain() == "there is no compiler here"
    found = bias_gelu_dropout(x, bias, 0.3, seed=seed_of(1))
    assert_close(found[found != 0], wanted[found != 0] / 0.7)


@pytest.mark.parametrize(
    ("given", "options", "reason"),
    [
        ((3, 4), {"approximate": "fast"}, "approximate is 'fast'"),
        ((3, 4), {"p": 1.5}, "p is 1.5"),
        ((3, 4), {"p": float("nan")}, "p is nan"),
        ((3, 4), {"seed": torch.ones(())}, r"the seed is torch.float32 \[\] on cpu"),
        ((3, 5), {}, r"the bias is \[4\] and x is \[3, 5\]"),
        ((), {}, r"the bias is \[4\] and x is \[\]"),
    ],
)
def test_arguments_out_of_range_are_refused(given, options, reason):
    with pytest.raises(ValueError, match=reason):
        bias_gelu_dropout(torch.ones(given), torch.ones(4), **options)
