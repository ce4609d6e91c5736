"""Which gradient and which weight is not finite: found in any of them, of any kind and size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from hasten.training.step_parts.skips import gradient_sizes, non_finite_sizes, non_finite_weights

VALUES = [math.nan, math.inf, -math.inf]


def with_gradient(gradient: Tensor) -> Tensor:
    parameter = torch.zeros(gradient.shape, dtype=gradient.dtype)
    parameter.grad = gradient
    return parameter


def many_kinds() -> dict[str, Tensor]:
    return {
        "none": torch.zeros(3),
        "empty": with_gradient(torch.zeros(0, 3)),
        "scalar": with_gradient(torch.tensor(2.0)),
        "short": with_gradient(torch.ones(3, dtype=torch.bfloat16)),
        "double": with_gradient(torch.full((2, 2), 1e300, dtype=torch.float64)),
        "sparse": with_gradient(torch.eye(3).to_sparse()),
        "complex": with_gradient(torch.ones(2, dtype=torch.complex64)),
        "largest": with_gradient(torch.full((50,), torch.finfo(torch.float32).max)),
    }


def test_gradients_of_any_kind_that_are_finite_raise_no_alarm():
    sizes = dict(gradient_sizes(many_kinds().items()))
    assert list(sizes) == ["scalar", "short", "double", "sparse", "complex", "largest"]
    assert sizes["scalar"] == 2
    assert non_finite_sizes([*sizes.items()]) == []
    assert non_finite_sizes([]) == gradient_sizes({"none": torch.zeros(3)}.items()) == []


@pytest.mark.parametrize(
    ("name", "value"),
    [("scalar", math.nan), ("short", -math.inf), ("double", math.inf), ("sparse", math.nan), ("complex", math.inf)],
)
def test_the_one_that_is_not_finite_is_named(name, value):
    named = many_kinds()
    gradient = named[name].grad
    assert gradient is not None
    planted = gradient.to_dense()
    planted.view(-1)[-1] = value
    named[name].grad = planted.to_sparse() if gradient.is_sparse else planted
    sizes = gradient_sizes(named.items())
    named[name].grad = None  # what was measured does not need it any more
    assert non_finite_sizes(sizes) == [name]


@pytest.mark.parametrize("value", VALUES)
def test_weights_are_looked_at_and_a_sum_that_overflows_is_no_alarm(value):
    weights = {
        "fine": torch.randn(4, 4),
        "large": torch.full((100,), torch.finfo(torch.float32).max),
        "half": torch.full((100,), 60_000.0, dtype=torch.float16),
        "opposite": torch.tensor([math.inf, -math.inf]) if math.isinf(value) else torch.zeros(2),
        "whole": torch.arange(3),
        "empty": torch.zeros(0),
        "last": torch.zeros(9),
    }
    weights["last"][8] = value
    assert non_finite_weights(weights.items()) == (["opposite"] if math.isinf(value) else []) + ["last"]
    assert non_finite_weights([]) == []
