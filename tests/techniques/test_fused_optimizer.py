"""One update of the fused and the foreach implementations gives the plain one's weights, up to rounding."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.techniques.contract import No, Yes
from hasten.techniques.fused_optimizer import TECHNIQUE, refusal, with_implementation
from support import setup_of

CPU = torch.device("cpu")
OPTIMIZERS = {
    "SGD": lambda params: torch.optim.SGD(params, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Adam": lambda params: torch.optim.Adam(params, lr=0.1, amsgrad=True),
    "AdamW": lambda params: torch.optim.AdamW(params, lr=0.1),
    "Adagrad": lambda params: torch.optim.Adagrad(params, lr=0.1, initial_accumulator_value=0.5),
}


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))


def after_three_updates(make, implementation):
    model = network()
    groups = [{"params": model[0].parameters(), "lr": 0.05}, {"params": model[2].parameters()}]
    optimizer = make(groups)
    if implementation:
        optimizer = with_implementation(optimizer, implementation)
    for seed in range(3):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(seed))
        optimizer.step()
    return [parameter.detach() for parameter in model.parameters()], optimizer


def setup(optimizer, model=None):
    model = model or network()
    return setup_of(model, torch.zeros(2, 4), optimizer=optimizer)


def choice(value):
    return Choice(technique="fused_optimizer", value=value, preserves=Preserves.ROUNDING)


@pytest.mark.trap(12)
@pytest.mark.parametrize("implementation", ["for_loop", "foreach", "fused"])
@pytest.mark.parametrize("make", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_every_implementation_makes_the_same_updates(make, implementation):
    plain, _ = after_three_updates(make, None)
    other, optimizer = after_three_updates(make, implementation)
    for mine, theirs in zip(plain, other, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-6)
    flags = {(group["fused"], group["foreach"]) for group in optimizer.param_groups}
    assert flags == {(implementation == "fused", implementation == "foreach")}


def test_the_new_optimizer_has_the_groups_and_settings_of_the_old():
    model = network()
    groups = [
        {"params": model[0].named_parameters(), "lr": 0.5},
        {"params": model[2].named_parameters(), "betas": (0.5, 0.6)},
    ]
    old = torch.optim.AdamW(groups, lr=0.1, weight_decay=0.3, eps=1e-6)
    new = with_implementation(old, "fused")
    for before, after in zip(old.param_groups, new.param_groups, strict=True):
        assert all(mine is theirs for mine, theirs in zip(before["params"], after["params"], strict=True))
        changed = {key for key in before if key != "params" and before[key] != after[key]}
        assert changed == {"fused", "foreach"}


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda params: torch.optim.Rprop(params), "Rprop has no fused implementation"),
        (lambda params: torch.optim.Adam(params, differentiable=True), "Adam cannot be fused here: .*differentiable"),
    ],
)
def test_an_optimizer_that_cannot_be_fused_has_a_reason(make, reason):
    assert re.match(reason, str(refusal(make(network().parameters()), "fused", CPU)))


def test_it_applies_where_an_optimizer_has_such_kernels():
    assert TECHNIQUE.applies(setup(OPTIMIZERS["AdamW"])) == Yes()
    values = [each.value for each in TECHNIQUE.candidates(setup(OPTIMIZERS["AdamW"]))]
    assert values == ["fused", "foreach"]


def test_it_does_not_apply_to_optimizers_that_are_fused_or_cannot_be():
    fused = setup(lambda params: torch.optim.AdamW(params, fused=True))
    assert TECHNIQUE.applies(fused) == No("the optimizer is already fused")
    muon = setup(lambda params: torch.optim.Muon(params, lr=0.1), nn.Linear(4, 2, bias=False))
    assert TECHNIQUE.applies(muon) == No("Muon has no fused implementation")


def test_applying_sets_the_option_and_says_which_optimizer_stays():
    mixed = setup(lambda params: [torch.optim.Muon(params[::2], lr=0.1), torch.optim.AdamW(params[1::2])])
    TECHNIQUE.apply(mixed, choice("fused"))
    assert mixed.optimizer.implementation == "fused"
    assert mixed.notices == ["Muon has no fused implementation; this optimizer keeps its own form"]


def test_senseless_values_are_refused():
    with pytest.raises(PlanError, match='write one of "for_loop", "foreach", "fused"'):
        TECHNIQUE.apply(setup(OPTIMIZERS["SGD"]), choice(True))
    with pytest.raises(PlanError, match="Muon has no foreach implementation"):
        muon = setup(lambda params: torch.optim.Muon(params, lr=0.1), nn.Linear(4, 2, bias=False))
        TECHNIQUE.apply(muon, choice("foreach"))
