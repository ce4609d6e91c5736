"""Averages of weights: moved by applied updates alone, evaluated in place, left without a trace."""

import math

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from hasten.facts.job import EqualAverage, ExponentialAverage
from hasten.techniques.setup import StepOptions
from hasten.training.setup.optimizers import MasterWeights
from hasten.training.state.averages import WeightAverage
from hasten.training.step import Step


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Linear(3, 1))


def average_of(model, kind, total_steps=None):
    return WeightAverage(model, MasterWeights(model), kind, total_steps)


def means(average):
    return [*average.state_dict()["means"].values()]


def stepped(model, average, loss=lambda model, batch: model(batch).square().mean(), **options):
    step = Step(
        model,
        loss,
        [torch.optim.SGD(model.parameters(), lr=0.1)],
        StepOptions(**options),
        after_update=average.after_update,
    )

    def move(seed):
        batch = torch.randn(6, 3, generator=torch.Generator().manual_seed(seed))
        step.accumulate(batch, 6)
        step.update()

    return move


@pytest.mark.trap(32)
def test_the_exponential_average_is_torchs_own_buffers_included():
    model = network()
    wanted = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.8), use_buffers=True)
    average = average_of(model, ExponentialAverage(0.8))
    move = stepped(model, average)
    for seed in range(5):
        move(seed)
        wanted.update_parameters(model)
    with average.in_place():
        for mine, theirs in zip(model.parameters(), wanted.module.parameters(), strict=True):
            assert torch.equal(mine, theirs)
        assert torch.equal(model[1].running_var, wanted.module[1].running_var)


@pytest.mark.trap(32)
def test_the_equal_average_begins_at_its_share_of_the_run():
    model = nn.Linear(2, 1)
    average = average_of(model, EqualAverage(start=0.5), total_steps=8)
    seen = []
    for value in range(1, 9):
        with torch.no_grad():
            model.weight.fill_(float(value))
        average.after_update()
        with average.in_place():
            seen.append(model.weight[0, 0].item())
    assert seen == [1, 2, 3, 4, 5, 5.5, 6, 6.5]


@pytest.mark.trap(32)
def test_a_skipped_update_does_not_move_the_average():
    model = network()
    average = average_of(model, ExponentialAverage(0.5))
    move = stepped(model, average, lambda model, batch: model(batch).square().mean() * math.inf, scale_gradients=True)
    before = [tensor.clone() for tensor in means(average)]
    move(0)
    assert average.state_dict()["updates"] == 0
    assert all(torch.equal(a, b) for a, b in zip(before, means(average), strict=True))


@pytest.mark.trap(32)
def test_an_average_that_waits_for_the_device_reads_the_buffers_of_its_own_update(monkeypatch):
    averages = []
    for late in (False, True):
        monkeypatch.setattr("hasten.training.step.decides_on_device", lambda device, optimizers, late=late: late)
        torch.manual_seed(0)
        model = network()
        average = average_of(model, ExponentialAverage(0.5))
        step = Step(
            model,
            lambda model, batch: model(batch).square().mean(),
            [torch.optim.SGD(model.parameters(), lr=0.1, fused=True)],
            after_update=average.after_update,
            after_update_reads_buffers=True,
        )
        for seed in range(4):
            step.accumulate(torch.randn(6, 3, generator=torch.Generator().manual_seed(seed)), 6)
            step.update()
        step.skips.settle()
        averages.append(means(average))
    assert all(torch.equal(a, b) for a, b in zip(*averages, strict=True))
