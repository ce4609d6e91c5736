from __future__ import annotations

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from hasten.facts.choice import Choice, Preserves
from hasten.facts.plan import Plan, PlannedChoice
from hasten.measure.float64_reference import copy_of, in_float64
from hasten.tuning.range_test import FEWEST, divergence, range_test, suggest_rate
from support import small_job

RATES = np.geomspace(1e-6, 10, 100).tolist()


def losses_of(steepest, *, limit=30.0, noise=0.0, seed=0):
    """A loss that falls fastest at `steepest`, and explodes beyond `limit` times that rate."""
    generator = np.random.default_rng(seed)
    curve = [
        2.3 - 1.5 / (1 + math.exp(-4 * math.log10(rate / steepest))) + (rate / (steepest * limit)) ** 2
        for rate in RATES
    ]
    return (np.asarray(curve) + noise * generator.standard_normal(len(curve))).tolist()


@pytest.mark.parametrize(("steepest", "noise"), [(1e-4, 0.0), (1e-2, 0.02)])
def test_the_rate_of_the_fastest_fall_is_found(steepest, noise):
    suggestion = suggest_rate(RATES, losses_of(steepest, noise=noise))
    assert suggestion.rate == pytest.approx(steepest, rel=1.0)
    assert suggestion.rate >= steepest / 2
    assert "falls fastest" in suggestion.reason


@settings(deadline=None, max_examples=20)
@given(
    losses=st.lists(st.floats(-100, 100), min_size=FEWEST, max_size=40),
    scale=st.sampled_from([2.0**power for power in range(-6, 7)]),
)
def test_a_suggestion_is_one_of_the_rates_and_no_matter_of_the_losss_unit(losses, scale):
    rates = RATES[: len(losses)]
    suggestion = suggest_rate(rates, losses)
    assert suggestion.reason
    assert suggestion.rate is None or suggestion.rate in rates
    assert suggest_rate(rates, [loss * scale for loss in losses]).rate == suggestion.rate


@pytest.mark.trap(51)
@settings(deadline=None, max_examples=10)
@given(tail=st.lists(st.sampled_from([math.nan, math.inf, 1e30, 0.0]), max_size=5))
def test_nothing_after_the_divergence_counts(tail):
    clean = losses_of(1e-4)[:80]
    ended = [*clean[:60], math.nan]
    assert suggest_rate(RATES[: 61 + len(tail)], ended + tail) == suggest_rate(RATES[:61], ended)


def test_a_flat_loss_suggests_nothing():
    assert suggest_rate(RATES, [1.0] * 100).rate is None
    noisy = (2.3 + 0.1 * np.random.default_rng(0).standard_normal(100)).tolist()
    suggestion = suggest_rate(RATES, noisy)
    assert suggestion.rate is None
    assert "noise" in suggestion.reason


@pytest.mark.parametrize(
    ("losses", "position"),
    [
        ([2.0, 1.0, 0.5], None),
        ([2.0, 1.0, math.nan, 1.0], 2),
        ([2.0, 1.0, 50.0, 1.0, 1.0], None),  # one bad batch
        ([2.0, 1.0, 50.0, 60.0, 70.0], 3),
        ([-2.0, -3.0, -1.0, 20.0, 30.0], 4),
        ([], None),
    ],
)
def test_divergence_is_a_lasting_rise_or_no_number(losses, position):
    assert divergence(losses) == position


# ── over real steps ─────────────────────────────────────────────────────────────────────────────────────────────────


def quadratic_job(**changes):
    """Least squares on 64 rows of eight features: plain descent is stable up to a rate of about 1."""
    generator = torch.Generator().manual_seed(0)
    rows = torch.randn(64, 8, generator=generator)
    fields = {
        "model": lambda: nn.Linear(8, 1),
        "loss": lambda model, batch: (model(batch[0]) - batch[1]).square().mean(),
        "optimizer": lambda params: torch.optim.SGD(params, lr=0.1),
        "train": (rows, rows @ torch.randn(8, 1, generator=generator)),
        "batch_size": 32,
    }
    return small_job(**(fields | changes))


def test_the_suggestion_for_least_squares_is_below_the_limit_of_stability():
    found = range_test(quadratic_job(), lowest=1e-4, highest=1e4)
    assert len(found.losses) == len(found.rates) < 100, "the test must end when the loss runs away"
    assert found.suggestion.rate is not None
    assert 0.003 < found.suggestion.rate < 0.7


def test_the_plans_choices_hold_but_for_rates():
    def chosen(technique, value, **options):
        return PlannedChoice(
            choice=Choice(technique=technique, value=value, preserves=Preserves.TRAINING, options=options)
        )

    plan = Plan(choices=(chosen("learning_rate", 5.0), chosen("schedule", "OneCycleLR", max_lr=3.0)))
    assert range_test(quadratic_job(), plan, steps=20) == range_test(quadratic_job(), steps=20)


@pytest.mark.trap(31)
@pytest.mark.trap(47)
def test_nothing_of_the_callers_changes():
    model = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.BatchNorm1d(4), nn.Linear(4, 1))
    model[3].eval()
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    job = quadratic_job(model=lambda: model)

    def everything():
        return (
            {name: tensor.tolist() for name, tensor in model.state_dict().items()},
            [parameter.grad.tolist() for parameter in model.parameters()],
            [module.training for module in model.modules()],
            [len(module._forward_hooks) for module in model.modules()],
            (torch.get_rng_state().tolist(), np.random.get_state()[1].tolist(), random.getstate()),
            (torch.get_num_threads(), torch.get_float32_matmul_precision(), torch.get_default_dtype()),
            [tensor.tolist() for tensor in job.train],
        )

    before = everything()
    range_test(job, steps=15)
    assert everything() == before


@pytest.mark.parametrize("norm", [nn.utils.weight_norm, nn.utils.spectral_norm])
@pytest.mark.filterwarnings("ignore:.torch.nn.utils.weight_norm. is deprecated:FutureWarning")
def test_a_layer_that_keeps_a_computed_weight_is_tested_too(norm):
    model = norm(nn.Linear(8, 1))
    model(torch.randn(2, 8))
    plain = quadratic_job(model=lambda: model)
    before = copy_of(model).state_dict()
    found = range_test(plain, steps=FEWEST)
    assert len(found.losses) == FEWEST
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in before.items())
    double = in_float64(model)
    assert double(torch.randn(2, 8, dtype=torch.float64)).dtype is torch.float64


@pytest.mark.parametrize("bad", [{"lowest": 0.0}, {"lowest": 1.0, "highest": 0.1}, {"steps": 3}, {"highest": math.inf}])
def test_a_range_that_is_none_is_refused(bad):
    with pytest.raises(ValueError, match="give 0 < lowest < highest"):
        range_test(quadratic_job(), **bad)
