"""Cross-entropy with ignored rows, masked classes, targets out of range, and extreme scores."""

from __future__ import annotations

import pytest
import torch
from torch import nan
from torch.nn import functional
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.kernels.softmax.cross_entropy import cross_entropy
from support.kernels.operator_cases import scores_and_targets

INF = torch.inf
formats = pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)  # the last is plain


def value_and_gradient(function, scores, *given, **options):
    leaf = scores.detach().clone().requires_grad_()
    value = function(leaf, *given, **options)
    return value.detach(), *torch.autograd.grad(value.sum(), leaf)


def torchs(scores, *given, **options):
    """Made by torch in float64, and then rounded."""
    found = value_and_gradient(functional.cross_entropy, scores.double(), *given, **options)
    return tuple(each.to(scores.dtype) for each in found)


@formats
@pytest.mark.parametrize("ignore_index", [-100, 3, -1])
def test_a_row_that_is_ignored_has_no_loss_and_no_gradient_whatever_its_scores(dtype, ignore_index):
    torch.manual_seed(0)
    scores, target = torch.randn(5, 21).to(dtype), torch.tensor([1, ignore_index, 2, ignore_index, 20])
    scores[1], scores[3, 4] = nan, INF
    losses, gradient = value_and_gradient(cross_entropy, scores, target, ignore_index, "none")
    assert losses[[1, 3]].tolist() == [0, 0]
    assert not gradient[[1, 3]].any()
    counted = [0, 2, 4]
    mean, of_mean = value_and_gradient(cross_entropy, scores, target, ignore_index)
    assert_close((mean, of_mean[counted]), torchs(scores[counted], target[counted]))


@formats
@pytest.mark.parametrize("rows", [0, 3])
@pytest.mark.parametrize(("reduction", "wanted"), [("mean", nan), ("sum", 0.0)])
def test_where_no_row_counts_a_mean_is_nan_a_sum_is_0_and_there_is_no_gradient(dtype, rows, reduction, wanted):
    value, gradient = value_and_gradient(
        cross_entropy, torch.randn(rows, 7).to(dtype), torch.full((rows,), -100), reduction=reduction
    )
    assert_close(value, torch.tensor(wanted, dtype=dtype), equal_nan=True)
    assert gradient.shape == (rows, 7)
    assert not gradient.any()


@formats
@pytest.mark.parametrize("wrong", [-1, 9, -(2**40)])
def test_a_target_that_is_no_class_is_named_before_memory_is_read(dtype, wrong):
    scores, target = torch.zeros(6, 9, dtype=dtype), torch.tensor([0, 8, -100, wrong, 1, wrong])
    with pytest.raises(IndexError, match=rf"target {wrong} of row 3 is none of 9 classes, nor ignore_index -100"):
        cross_entropy(scores, target)


@formats
def test_classes_may_be_masked_by_minus_infinity(dtype):
    torch.manual_seed(0)
    scores, target = torch.randn(4, 3000).to(dtype), torch.tensor([2500, 2999, 0, 1025])
    scores[0, :2500] = -INF  # more than a block of them, before and behind what is there
    scores[1, :-1] = -INF
    scores[2, 1:] = -INF
    scores[3, ::2] = -INF
    found = value_and_gradient(cross_entropy, scores, target, reduction="none")
    wanted = torchs(scores, target, reduction="none")
    assert_close(found, wanted)
    assert found[0][1:3].tolist() == [0, 0]


@formats
def test_infinite_scores_and_nan_give_what_torch_gives(dtype):
    rows = [[-INF] * 3, [INF, 0, 1], [1, INF, INF], [0, -INF, 1], [0, nan, -INF], [nan] * 3, [-INF, nan, -INF]]
    scores, target = torch.tensor(rows).to(dtype).repeat_interleave(3, 0), torch.arange(3).repeat(len(rows))
    found = value_and_gradient(cross_entropy, scores, target, reduction="none")
    assert_close(found, torchs(scores, target, reduction="none"), equal_nan=True)


@pytest.mark.parametrize("offset", [-1e4, 1e4])
def test_scores_far_from_0_lose_no_digits(offset):
    torch.manual_seed(0)
    scores, target = scores_and_targets(8, 1500)
    scores = (scores + offset).float()
    found = value_and_gradient(cross_entropy, scores, target)
    assert_close(found, torchs(scores.double() - offset, target), check_dtype=False, rtol=2e-6, atol=1e-9)


@formats
@pytest.mark.parametrize("classes", [2, 17, 63, 1024, 1025, 50257])
def test_any_number_of_classes_is_computed(dtype, classes):
    torch.manual_seed(0)
    scores, target = scores_and_targets(3, classes)
    target[0], target[1] = classes - 1, 0
    scores = scores.sort()[0].to(dtype)  # every block has a greater one than all before
    found = value_and_gradient(cross_entropy, scores, target)
    assert_close(found, torchs(scores, target))


@pytest.mark.parametrize(
    ("scores", "target", "options", "told"),
    [
        (torch.zeros(3), torch.zeros(3).long(), {}, r"shape \[rows, classes\]; they are torch.float32 \[3\]"),
        (torch.zeros(3, 2).long(), torch.zeros(3).long(), {}, "floating-point"),
        (torch.zeros(3, 0), torch.full((3,), -100), {}, "0 classes"),
        (torch.zeros(3, 2), torch.zeros(2).long(), {}, r"target must be int64 of shape \[3\]; it is torch.int64 \[2\]"),
        (torch.zeros(3, 2), torch.zeros(3), {}, "it is torch.float32"),
        (
            torch.zeros(3, 2),
            torch.zeros(3).long(),
            {"reduction": "max"},
            "reduction is 'max'; it can be mean, sum, none",
        ),
    ],
)
def test_other_shapes_dtypes_and_reductions_are_refused(scores, target, options, told):
    with pytest.raises(ValueError, match=told):
        cross_entropy(scores, target, **options)


class Made(TorchDispatchMode):
    """largest: how many numbers an operation gave at most."""

    largest = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        found = func(*args, **(kwargs or {}))
        each = found if isinstance(found, tuple) else (found,)
        self.largest = max([self.largest, *(one.numel() for one in each if isinstance(one, torch.Tensor))])
        return found


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_forward_allocates_nothing_as_large_as_the_scores_and_backward_only_their_gradient(reduction):
    scores, target = torch.randn(30, 200, requires_grad=True), torch.arange(30)
    with Made() as forward:
        value = cross_entropy(scores, target, reduction=reduction)
    assert forward.largest == 30
    with Made() as backward:
        torch.autograd.grad(value.sum(), scores)
    assert backward.largest == 30 * 200
