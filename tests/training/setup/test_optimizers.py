"""The job's optimizers: each parameter in one place, none forgotten, and made as the plan wants."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from hasten.errors import JobError
from hasten.techniques.setup import OptimizerOptions
from hasten.training.setup.optimizers import build_optimizers
from support import small_job

SGD, ADAMW = torch.optim.SGD, torch.optim.AdamW


def model():
    return nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))


def made(network, optimizer, *, options=None, **job):
    return build_optimizers(small_job(optimizer=optimizer, **job), network, options or OptimizerOptions())


@pytest.mark.parametrize("returned", [None, [], [None]])
def test_what_is_no_optimizer_is_refused(returned):
    with pytest.raises(JobError, match=r"Job\.optimizer: returns"):
        made(model(), lambda params: returned)


def test_a_forgotten_parameter_is_named():
    with pytest.raises(JobError, match=r"does not hold 1\.weight, 1\.bias, so it would not be trained"):
        made(model(), lambda params: SGD(params[:2], lr=0.1))


def test_a_parameter_in_two_optimizers_is_named():
    with pytest.raises(JobError, match=r"holds 0\.weight, 0\.bias, 1\.weight and 1 more more than once"):
        made(model(), lambda params: [SGD(params, lr=0.1), ADAMW(params, lr=0.1)])


def test_a_tensor_that_is_not_the_models_is_refused():
    stray = nn.Parameter(torch.zeros(5))
    with pytest.raises(JobError, match=r"shape \(5,\) that is not a parameter of the model"):
        made(model(), lambda params: SGD([*params, stray], lr=0.1))


def each_layers(network):
    """Parameters for two optimizers; generators, as parameters() returns them."""
    return [layer.parameters() for layer in network]


def test_a_list_of_parameters_for_each_of_two_optimizers_is_taken():
    both = made(model(), lambda lists: [ADAMW(lists[0]), SGD(lists[1], lr=0.1)], parameters=each_layers)
    assert [len(optimizer.param_groups[0]["params"]) for optimizer in both] == [2, 2]
    with pytest.raises(JobError, match=r"does not hold 1\.weight, 1\.bias, so it would not be trained"):
        made(model(), lambda lists: ADAMW(lists[0]), parameters=each_layers)


def test_what_is_no_parameter_is_refused():
    with pytest.raises(JobError, match=r"Job\.parameters: gives 'weight' \(str\)"):
        made(model(), SGD, parameters=lambda network: ["weight"])
    with pytest.raises(JobError, match="nothing to train"):
        made(model(), SGD, parameters=lambda network: [[], []])


@pytest.mark.trap(12)
def test_an_optimizer_whose_step_needs_a_closure_is_refused_with_the_reason():
    with pytest.raises(JobError, match=r"is LBFGS, whose step\(\) computes the loss several times"):
        made(model(), lambda params: torch.optim.LBFGS(params))


def test_a_planned_rate_keeps_the_ratios_of_all_groups():
    def optimizer(params):
        return [SGD([{"params": params[:1]}, {"params": params[1:2], "lr": 0.3}], lr=0.1), ADAMW(params[2:], lr=0.02)]

    optimizers = made(model(), optimizer, options=OptimizerOptions(learning_rate=0.7))
    rates = [group["lr"] for each in optimizers for group in each.param_groups]
    assert rates == [0.7, pytest.approx(2.1), pytest.approx(0.14)]
    assert rates[0] == 0.7


def test_a_planned_implementation_is_taken_where_there_is_one():
    def optimizer(params):
        return [torch.optim.Muon(params[::2], lr=0.3), ADAMW(params[1::2], lr=0.2)]

    muon, adamw = made(model(), optimizer, options=OptimizerOptions(implementation="fused", learning_rate=0.6))
    assert "fused" not in muon.defaults
    assert adamw.param_groups[0]["fused"] is True
    assert (muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"]) == (0.6, pytest.approx(0.4))
