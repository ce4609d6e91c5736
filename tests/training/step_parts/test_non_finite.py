"""Which gradient and which weight is not finite: found in any of them, of any kind and size."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

import hasten
from hasten.errors import Misconfigured, NonFinite
from hasten.training.step_parts.skips import gradient_sizes, non_finite_sizes, non_finite_weights
from support import small_job

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


class Spectral(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        weight = torch.randn(4, dtype=torch.complex64, generator=torch.Generator().manual_seed(0))
        self.weight, self.out = nn.Parameter(weight), nn.Linear(6, 3)

    def forward(self, rows):
        return self.out(torch.fft.irfft(torch.fft.rfft(rows) * self.weight, n=6))


def test_complex_parameters_train_as_in_a_plain_loop():
    job = small_job(model=Spectral, shuffle=False, epochs=1)
    torch.manual_seed(job.seed)
    model = job.model()
    optimizer = job.optimizer(model.parameters())
    for rows, labels in zip(job.train[0].split(8), job.train[1].split(8), strict=True):
        optimizer.zero_grad()
        job.loss(model, (rows, labels)).backward()
        optimizer.step()
    trained = hasten.train(job, receivers=[]).weights
    assert all(weight.equal(trained[name]) for name, weight in model.state_dict().items())


def test_a_complex_gradient_that_is_not_finite_is_an_error_that_names_it():
    def loss(model, batch):
        return (model.weight.abs().sum() * math.nan if len(batch[0]) else 0) + model(batch[0]).mean()

    with pytest.raises(NonFinite, match="a gradient of weight is not finite"):
        hasten.train(small_job(model=Spectral, loss=loss), receivers=[])


def test_values_of_complex_gradients_cannot_be_clipped():
    with pytest.raises(Misconfigured, match="complex"):
        hasten.train(small_job(model=Spectral, clip_value=0.1), receivers=[])
