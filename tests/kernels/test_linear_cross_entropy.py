"""A last layer with its cross-entropy, some rows at a time: the same numbers, and never all logits."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hasten.kernels import linear_cross_entropy as module
from hasten.kernels.linear_cross_entropy import linear_cross_entropy
from support.kernels.operator_cases import last_layer, linear_then_cross_entropy
from support.parallel.part_jobs import Allocations

reductions = pytest.mark.parametrize("reduction", ["mean", "sum"])


def with_gradients(function, given, **options):
    """given: x, weight, target, bias."""
    leaves = [each.clone().requires_grad_() if each.is_floating_point() else each for each in given]
    value = function(*leaves, **options)
    return value.detach(), *torch.autograd.grad(3 * value, [leaves[0], leaves[1], leaves[3]])


@reductions
@pytest.mark.parametrize("logits_at_once", [1, 33, 100, 33 * 21, 1 << 24])
def test_it_is_the_layer_and_then_its_loss_whatever_goes_at_once(reduction, logits_at_once, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", logits_at_once)
    given = last_layer(21, 10)
    found = with_gradients(linear_cross_entropy, given, reduction=reduction)
    assert_close(found, with_gradients(linear_then_cross_entropy, given, reduction=reduction))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_many_parts_lose_no_digits(dtype, monkeypatch):
    torch.manual_seed(0)
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 33 * 20)
    monkeypatch.setattr(module, "_PRODUCTS_AT_ONCE", 24 * 10)
    given = [each.to(dtype) if each.is_floating_point() else each for each in last_layer(400, 24)]
    exact = with_gradients(
        linear_then_cross_entropy,
        [each.double() if each.is_floating_point() else each for each in given],
        reduction="mean",
    )
    found = with_gradients(linear_cross_entropy, given)
    theirs = with_gradients(linear_then_cross_entropy, given, reduction="mean")
    for mine, other, wanted in zip(found, theirs, exact, strict=True):
        one_rounding = torch.finfo(dtype).eps / 2 * wanted.abs().max()
        assert (mine - wanted).abs().max() <= 2 * (other - wanted).abs().max() + one_rounding


def test_a_weight_of_16_bits_is_given_a_sum_of_32(monkeypatch):
    """In 16, a sum that has grown takes no more small ones."""
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 8)
    x, weight = torch.ones(2048, 1, dtype=torch.bfloat16), torch.zeros(8, 1, dtype=torch.bfloat16, requires_grad=True)
    (found,) = torch.autograd.grad(linear_cross_entropy(x, weight, torch.zeros(2048).long(), reduction="sum"), weight)
    assert found[:, 0].tolist() == [-2048 * 7 / 8, *[2048 / 8] * 7]


def test_small_gradients_do_not_vanish_in_float16():
    """A row's share of a mean would be less than its smallest number."""
    x, weight = torch.zeros(4096, 1, dtype=torch.float16), torch.zeros(64, 1, dtype=torch.float16, requires_grad=True)
    x[0] = 1e-3
    target = torch.arange(4096) % 64
    loss = linear_cross_entropy(x, weight, target)
    (found,) = torch.autograd.grad(1024 * loss, weight)
    wanted = 1024 * 1e-3 / 4096 * (1 / 64 - nn.functional.one_hot(target[:1], 64).double().t())
    assert_close(found.double(), wanted, rtol=2e-3, atol=6e-8)


@reductions
@pytest.mark.parametrize("rows", [0, 5])
def test_where_no_row_counts_there_is_no_gradient(reduction, rows):
    x, weight, _, bias = last_layer(rows, 4)
    value, *gradients = with_gradients(
        linear_cross_entropy, (x, weight, torch.full((rows,), 7), bias), ignore_index=7, reduction=reduction
    )
    assert value.isnan() if reduction == "mean" else value == 0
    assert not any(each.any() for each in gradients)


@pytest.mark.parametrize("frozen", ["x", "weight", "bias", "no bias"])
def test_what_is_not_trained_is_given_no_gradient(frozen):
    torch.manual_seed(0)
    names = dict(zip(("x", "weight", "target", "bias"), last_layer(6, 4), strict=True))
    for name in {"x", "weight", "bias"} - {frozen}:
        names[name].requires_grad_()
    if frozen == "no bias":
        del names["bias"]
    leaves = [each for each in names.values() if each.requires_grad]
    found = torch.autograd.grad(linear_cross_entropy(**names), leaves)
    composed = linear_then_cross_entropy(**{"bias": None, **names}, reduction="mean")
    assert_close(found, torch.autograd.grad(composed, leaves))
    assert (leaves, linear_cross_entropy(**names).requires_grad) == (leaves, True)


def test_where_nothing_is_differentiated_no_gradient_is_made(monkeypatch):
    monkeypatch.setattr(module, "gradient_of_rows", None)
    x, weight, target, bias = last_layer(6, 4)
    with torch.no_grad():
        linear_cross_entropy(x.requires_grad_(), weight, target, bias)
    linear_cross_entropy(x.detach(), weight, target, bias)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_under_autocast_products_are_in_its_format_and_the_loss_in_float32(dtype):
    torch.manual_seed(0)
    given = [each.to(dtype) if each.is_floating_point() else each for each in last_layer(50, 24)]
    with torch.autocast("cpu", torch.bfloat16):
        found = with_gradients(linear_cross_entropy, given)
        theirs = with_gradients(linear_then_cross_entropy, given, reduction="mean")
    assert [each.dtype for each in found] == [each.dtype for each in theirs]
    assert found[0].dtype == torch.float32
    assert_close(found, theirs, rtol=2e-2, atol=2e-3)


def test_a_target_that_is_no_class_is_named_by_its_row_in_the_batch(monkeypatch):
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 33)
    x, weight, target, bias = last_layer(9, 4)
    target[7] = 33
    with pytest.raises(IndexError, match="target 33 of row 7 is none of 33 classes"):
        linear_cross_entropy(x, weight, target, bias)


def test_a_second_derivative_is_refused():
    x, weight, target, bias = last_layer(3, 4)
    loss = linear_cross_entropy(x.requires_grad_(), weight, target, bias)
    with pytest.raises(RuntimeError, match="differentiable once"):
        torch.autograd.grad(loss, x, create_graph=True)


X, WEIGHT, TARGET = torch.zeros(3, 2), torch.zeros(5, 2), torch.zeros(3).long()


@pytest.mark.parametrize(
    ("given", "options", "told"),
    [
        ((X, WEIGHT, TARGET), {"reduction": "none"}, "reduction is 'none'.*gradients are made in forward"),
        ((X, torch.zeros(5, 3), TARGET), {}, r"not \[3, 2\] and \[5, 3\]"),
        ((X, torch.zeros(0, 2), TARGET), {}, r"not \[3, 2\] and \[0, 2\]"),
        ((X[0], WEIGHT, TARGET), {}, r"x is \[rows, width\]"),
        ((X, WEIGHT, TARGET[:2]), {}, r"target is int64 of shape \[3\], not torch.int64 \[2\]"),
        ((X, WEIGHT, TARGET.int()), {}, "not torch.int32"),
        ((X, WEIGHT, TARGET), {"bias": torch.zeros(3)}, r"bias is \[5\], not \[3\]"),
        ((X, WEIGHT.double(), TARGET), {}, "of one floating-point format"),
        ((X.long(), WEIGHT.long(), TARGET), {}, "of one floating-point format"),
    ],
)
def test_what_it_does_not_know_is_refused(given, options, told):
    with pytest.raises(ValueError, match=told):
        linear_cross_entropy(*given, **options)


def test_nothing_is_as_large_as_the_logits(monkeypatch):
    monkeypatch.setattr(module, "LOGITS_AT_ONCE", 33 * 50)
    given = [each.float() if each.is_floating_point() else each for each in last_layer(400, 24)]
    logits = 4 * 400 * 33
    with Allocations() as composed:
        with_gradients(linear_then_cross_entropy, given, reduction="mean")
    assert composed.largest == logits
    with Allocations() as ours:  # the operator's own function, as the mode does not see into one
        module._made(*given, -100, [True, True, True])
    assert ours.largest == 4 * given[0].numel() < logits
    with Allocations() as ours:
        with_gradients(linear_cross_entropy, given)
    assert ours.largest == 4 * given[0].numel()
