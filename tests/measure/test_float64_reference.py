"""The float64 step of a job: what it computes, what it lifts, and what it leaves alone."""

from __future__ import annotations

import copy
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from hasten.errors import InvalidMeasurement
from hasten.facts.job import Loss
from hasten.measure.float64_reference import Lifted, longest_sum, nearby_gradients, reference_gradients
from support.measure.small_models import MODELS, batch_for, gradients, mlp, squared_error, start


@pytest.mark.parametrize("kind", MODELS)
def test_the_reference_is_what_a_float64_job_computes(kind):
    model, batch = start(kind, 0), batch_for(kind, torch.Generator().manual_seed(0))
    whole = [each.double() if each.is_floating_point() else each for each in batch]
    expected = gradients(copy.deepcopy(model).double(), whole)
    found = reference_gradients(model, squared_error, [batch])
    assert found.keys() == expected.keys()
    for name, each in found.items():
        assert each.dtype == torch.float64
        torch.testing.assert_close(each, expected[name], rtol=1e-12, atol=1e-14)


def with_a_mean(model, batch):
    return F.mse_loss(model(batch[0]), batch[1])


def with_a_penalty(model, batch):
    return replace(squared_error(model, batch), auxiliary=model(batch[0]).abs().mean())


@pytest.mark.parametrize("loss", [with_a_mean, squared_error, with_a_penalty])
def test_uneven_batches_weigh_by_what_they_hold(loss):
    model, (x, y) = start("mlp", 0), batch_for("mlp", torch.Generator().manual_seed(0))
    whole = reference_gradients(model, loss, [(x, y)])
    parts = reference_gradients(model, loss, [(x[:5], y[:5]), (x[5:], y[5:])])
    for name in whole:
        torch.testing.assert_close(parts[name], whole[name], rtol=1e-12, atol=1e-14)


@pytest.mark.trap(47)
def test_the_reference_changes_nothing_of_the_callers():
    model, batch = start("convolutional", 0), batch_for("convolutional", torch.Generator().manual_seed(0))
    squared_error(model, batch).total.backward()
    given = [*model.state_dict().values(), *(each.grad for each in model.parameters()), *batch]
    before = [each.clone() for each in given]
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist()

    def drawing(model, batch):
        assert torch.zeros(1).dtype == torch.float64
        return Loss(squared_error(model, batch).total + torch.rand(1).sum() + random.random() + np.random.rand(), 1)

    with torch.no_grad():
        reference_gradients(model, drawing, [batch])
    after = [*model.state_dict().values(), *(each.grad for each in model.parameters()), *batch]
    assert all(one is other or torch.equal(one, other) for one, other in zip(before, after, strict=True))
    assert torch.equal(states[0], torch.get_rng_state())
    assert states[1:] == (random.getstate(), np.random.get_state()[1].tolist())
    assert torch.get_default_dtype() == torch.float32
    assert all(each.dtype == torch.float32 for each in model.parameters())


class Casting(nn.Module):
    """A model that casts on its way, in each of the ways that are usual."""

    def __init__(self, cast):
        super().__init__()
        self.cast, self.inner = cast, mlp()

    def forward(self, x):
        return self.inner(self.cast(x))


@pytest.mark.parametrize(
    "cast",
    [
        lambda x: x.float(),
        lambda x: x.to(torch.float32),
        lambda x: x + torch.zeros(5, dtype=torch.float32),
        lambda x: F.softmax(x, -1, dtype=torch.float32) * 0 + x,
        lambda x: (x * 8).to(torch.int64).float() / 8 + x,
    ],
)
def test_casts_of_the_jobs_own_are_lifted(cast):
    batch = batch_for("mlp", torch.Generator().manual_seed(0))
    model = Casting(cast)
    x = batch[0].double()
    steps = (x * 8).to(torch.int64) / 8 + x
    same = steps if torch.equal(cast(batch[0]), steps.float()) else x
    expected = reference_gradients(model.inner, squared_error, [(same, batch[1])])
    for name, each in reference_gradients(model, squared_error, [batch]).items():
        torch.testing.assert_close(each, expected[name.removeprefix("inner.")], rtol=1e-12, atol=1e-14)


def test_a_loss_of_float64_outputs_and_float32_targets_is_float64():
    outputs, targets = torch.rand(3, 4, dtype=torch.float64), torch.rand(3, 4)
    with Lifted():
        loss = F.binary_cross_entropy(outputs, targets) + (targets @ outputs.T).sum()
    expected = F.binary_cross_entropy(outputs, targets.double()) + (targets.double() @ outputs.T).sum()
    torch.testing.assert_close(loss, expected, rtol=0, atol=0)


def test_a_cast_that_cannot_be_lifted_is_refused_as_a_reference():
    batch = batch_for("mlp", torch.Generator().manual_seed(0))
    with pytest.raises(InvalidMeasurement, match=r"is torch\.float32"):
        reference_gradients(mlp(), lambda model, batch: with_a_mean(model, batch).type("torch.FloatTensor"), [batch])
    with pytest.raises(InvalidMeasurement, match="contain no items"):
        reference_gradients(mlp(), squared_error, [])


@pytest.mark.parametrize(("kind", "terms"), [("mlp", 8), ("words", 56), ("convolutional", 8 * 49)])
def test_the_longest_sum_has_a_term_for_every_sample_and_position(kind, terms):
    batch = batch_for(kind, torch.Generator().manual_seed(0))
    assert longest_sum(start(kind, 0), squared_error, batch) == terms


@pytest.mark.parametrize("kind", MODELS)
def test_nearby_gradients_lie_as_far_away_as_rounding(kind):
    model, batch = start(kind, 0), batch_for(kind, torch.Generator().manual_seed(0))
    plain, before = gradients(model, batch), copy.deepcopy(model.state_dict())
    same, near = (nearby_gradients(model, squared_error, batch, terms=terms, seed=1) for terms in (0, 400))
    weights = [name for name, each in plain.items() if each.norm() > 1e-3]
    assert len(weights) >= 4
    for name in weights:
        torch.testing.assert_close(same[name], plain[name], rtol=1e-5, atol=1e-6)
        assert 0 < (near[name] - plain[name]).norm() < 1e-3 * plain[name].norm()
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
