"""Gradients at the boundary: looked at before they are clipped, and named where one of them is not finite."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from hasten.errors import JobError, Misconfigured, NonFinite
from hasten.techniques.setup import StepOptions
from hasten.training.step import Step
from support.training.steps import gradients_of, mean_loss_function, rows


@pytest.mark.trap(11)
def test_a_maximal_norm_of_zero_stops_all_movement():
    found, _ = gradients_of(mean_loss_function, [rows(4)], options=StepOptions(clip_norm=0.0))
    assert all(gradient.eq(0).all() for gradient in found)


@pytest.mark.parametrize("scale_gradients", [False, True])
@pytest.mark.parametrize(
    "options",
    [{"clip_norm": 1.0}, {"clip_norm": math.inf, "clip_value": math.inf}, {"clip_norm": 1.0, "clip_value": 1e30}],
    ids=str,
)
def test_a_norm_that_overflows_is_treated_as_not_finite_and_told_as_what_it_is(options, scale_gradients):
    model = nn.Linear(64, 64, bias=False)
    step = Step(
        model,
        lambda model, batch: (model.weight * 1e30).sum(),
        [torch.optim.SGD(model.parameters(), lr=1.0, momentum=0.9)],
        StepOptions(**options, scale_gradients=scale_gradients),
    )
    before = model.weight.clone()
    step.accumulate(None, 1)
    with pytest.raises(NonFinite, match="the norm of the gradients is not finite, although every gradient is"):
        step.update()
    assert torch.equal(model.weight, before)


@pytest.mark.trap(8)
def test_a_parameter_that_no_optimizer_holds_counts_in_the_norm_unscaled():
    norms = []
    for scale_gradients in (False, True):
        torch.manual_seed(0)
        model = nn.ModuleDict({"body": nn.Linear(4, 4), "other": nn.Linear(4, 4)})
        step = Step(
            model,
            lambda model, batch: model["other"](model["body"](batch)).square().mean(),
            [torch.optim.SGD(model["body"].parameters(), lr=0.1)],
            StepOptions(clip_norm=1.0, scale_gradients=scale_gradients),
        )
        step.accumulate(torch.ones(2, 4), 2)
        step.update()
        assert step.gradient_norm is not None
        norms.append(step.gradient_norm.item())
    assert norms[1] == pytest.approx(norms[0], rel=1e-5)


@pytest.mark.parametrize("options", [{}, {"clip_value": 1.0}, {"clip_norm": 1.0}, {"scale_gradients": True}], ids=str)
def test_a_loss_that_reaches_no_parameter_is_refused(options):
    model, another = nn.Linear(4, 4), nn.Linear(4, 4)
    step = Step(
        model,
        lambda model, batch: another(batch).mean(),
        [torch.optim.SGD(model.parameters(), lr=0.1)],
        StepOptions(**options),
    )
    step.accumulate(torch.ones(2, 4), 2)
    with pytest.raises(JobError, match="depends on no parameter of the model"):
        step.update()


@pytest.mark.trap(51)
@pytest.mark.parametrize("value", [math.nan, math.inf])
@pytest.mark.parametrize(
    "options",
    [
        {"clip_norm": 1.0},
        {"clip_norm": 1.0, "clip_norm_type": math.inf},
        {"clip_norm": 1.0, "clip_norm_type": 0.5},
        {"clip_norm": math.inf},
        {"clip_value": 1.0},
        {"clip_norm": 1.0, "clip_value": 1.0},
    ],
    ids=str,
)
def test_the_parameter_whose_gradient_is_not_finite_is_named_under_any_clipping(options, value):
    model = nn.ModuleDict({"body": nn.Linear(4, 4), "head": nn.Linear(4, 4)})

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model["body"](batch).mean() + (model["head"].bias * value).mean()

    before = copy.deepcopy(model.state_dict())
    step = Step(model, loss, [torch.optim.SGD(model.parameters(), lr=0.1)], StepOptions(**options))
    step.accumulate(torch.ones(1, 4), 1)
    with pytest.raises(NonFinite, match=r"a gradient of head\.bias is not finite"):
        step.update()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


@pytest.mark.trap(51)
@pytest.mark.parametrize("kind", ["of another dtype", "sparse"])
def test_a_gradient_unlike_the_others_is_looked_at_too(kind):
    table = nn.Embedding(10, 4, sparse=kind == "sparse", dtype=torch.float32 if kind == "sparse" else torch.float64)
    model = nn.ModuleDict({"linear": nn.Linear(4, 4), "table": table})

    def loss(model: nn.Module, batch: Tensor) -> Tensor:
        return model["linear"](torch.ones(1, 4)).mean() + (model["table"](batch) * math.inf).float().mean()

    before = copy.deepcopy(model.state_dict())
    step = Step(model, loss, [torch.optim.SGD(model.parameters(), lr=0.1)])
    step.accumulate(torch.tensor([3]), 1)
    with pytest.raises(NonFinite, match=r"table\.weight"):
        step.update()
    assert all(torch.equal(before[key], value) for key, value in model.state_dict().items())


def test_sparse_gradients_train_and_are_refused_where_they_would_be_clipped():
    def step_of(**options):
        model = nn.Sequential(nn.Embedding(10, 4, sparse=True), nn.Linear(4, 4))
        loss = lambda model, batch: model(batch).square().mean()  # noqa: E731
        return Step(model, loss, [torch.optim.SGD(model.parameters(), lr=0.1)], StepOptions(**options))

    plain = step_of()
    plain.accumulate(torch.tensor([1, 1, 2]), 3)
    plain.update()
    assert plain.skips.applied == 1
    for options in ({"clip_norm": 1.0}, {"clip_value": 1.0}):
        clipped = step_of(**options)
        clipped.accumulate(torch.tensor([1, 1, 2]), 3)
        with pytest.raises(Misconfigured, match="sparse"):
            clipped.update()
