"""Layers and functions are replaced by fused operators, and give the same."""

from __future__ import annotations

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hasten.errors import PlanError
from hasten.facts.choice import Choice, Preserves
from hasten.kernels.activation import gelu
from hasten.kernels.attention import scaled_dot_product_attention as attention
from hasten.techniques.common.operator_layers import FUSED_LAYERS
from hasten.techniques.contract import No, Yes
from hasten.techniques.fused_operators import TECHNIQUE, find, replace_forward
from hasten.training.setup.torch_compiling import compile_model
from support import setup_of


class OwnGELU(nn.GELU):
    def forward(self, input: torch.Tensor) -> torch.Tensor:
        return input * 2


def perceptron() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.GELU(), nn.Linear(8, 8), nn.GELU("tanh"), OwnGELU(), nn.Linear(8, 3))


def plan(value):
    return Choice(technique="fused_operators", value=value, preserves=Preserves.ROUNDING)


def operations(model):
    """Names of the operations that a forward pass and its backward pass call."""
    with torch.profiler.profile(acc_events=True) as profile:
        model(torch.randn(5, 6)).sum().backward()
    return {event.key for event in profile.key_averages()}


def test_layers_of_a_kind_are_found_and_subclasses_skipped():
    model = perceptron()
    assert find(model) == {"gelu": [model[1], model[3]]}


def test_replaced_layers_compute_by_the_operator_and_give_the_same():
    rows = torch.randn(5, 6)
    model, other = perceptron(), perceptron()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    replace_forward(find(model))
    assert {name: value.tolist() for name, value in model.state_dict().items()} == {
        name: value.tolist() for name, value in before.items()
    }
    assert {"hasten::gelu", "hasten::gelu_backward"} <= operations(model)
    assert "hasten::gelu" not in operations(other)
    model.zero_grad()
    other.zero_grad()
    found, wanted = model(rows), other(rows)
    assert_close(found, wanted)
    found.square().sum().backward()
    wanted.square().sum().backward()
    for one, two in zip(model.parameters(), other.parameters(), strict=True):
        assert_close(one.grad, two.grad)


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: nn.LayerNorm(24), "layer_norm"),
        (lambda: nn.LayerNorm(24, elementwise_affine=False), "layer_norm"),
        (lambda: nn.LayerNorm(24, bias=False), "layer_norm"),
        (lambda: nn.Softmax(dim=1), "softmax"),
        (lambda: nn.GELU("tanh"), "gelu"),
    ],
    ids=["LayerNorm", "without weights", "without bias", "Softmax", "GELU"],
)
@pytest.mark.parametrize("autocast", [False, True], ids=["float32", "bf16 autocast"])
def test_every_kind_of_layer_gives_the_same(make, name, autocast):
    torch.manual_seed(0)
    plain, front = make(), nn.Linear(24, 24)
    replaced = copy.deepcopy(plain)
    replace_forward(find(replaced))
    assert find(plain) == {name: [plain]}
    rows = torch.randn(3, 5, 24)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found, wanted = replaced(front(rows)), plain(front(rows))
    assert found.dtype == wanted.dtype
    close = {"rtol": 2e-2, "atol": 2e-2} if autocast else {"rtol": 1e-5, "atol": 1e-6}
    assert_close(found, wanted, **close)


def test_layers_that_the_operators_do_not_compute_are_skipped():
    assert find(nn.Sequential(nn.LayerNorm((4, 6)), nn.RMSNorm(6), nn.Softmax())) == {}


def test_a_copy_of_a_replaced_layer_computes_by_itself():
    model = nn.Sequential(nn.GELU())
    replace_forward(find(model))
    copied = copy.deepcopy(model)
    assert find(model) == {}, "a layer is replaced once"
    copied[0].approximate = "tanh"  # pyright: ignore[reportAttributeAccessIssue]
    rows = torch.randn(4, 4)
    assert_close(copied(rows), nn.functional.gelu(rows, approximate="tanh"))
    assert_close(model(rows), nn.functional.gelu(rows))


def test_without_a_compiler_it_does_not_apply_and_a_plan_that_names_it_runs_with_a_notice(monkeypatch):
    reason = "there is no C++ compiler here: c++ is not found"
    monkeypatch.setattr(gelu.CPP, "library", reason, raising=False)
    setup = setup_of(perceptron(), torch.randn(5, 6))
    verdict = TECHNIQUE.applies(setup)
    assert isinstance(verdict, No)
    assert verdict.reason == reason
    TECHNIQUE.apply(setup, plan(True))
    assert any(reason in notice for notice in setup.notices)
    assert find(setup.model)


class Attends(nn.Module):
    def forward(self, heads):
        return nn.functional.scaled_dot_product_attention(heads, heads, heads)


class AttendsAndCallsGELU(nn.Module):
    def forward(self, heads):
        return nn.functional.gelu(nn.functional.scaled_dot_product_attention(heads, heads, heads))


def test_without_a_form_for_attention_it_applies_only_to_models_that_call_other_functions(monkeypatch):
    reason = "the processor has other instructions"
    monkeypatch.setattr(attention.CPP, "library", reason, raising=False)
    verdict = TECHNIQUE.applies(setup_of(Attends(), torch.randn(1, 5, 6)))
    assert isinstance(verdict, No)
    assert verdict.reason == reason
    assert isinstance(TECHNIQUE.applies(setup_of(AttendsAndCallsGELU(), torch.randn(1, 5, 6))), Yes)


def test_a_plan_names_operators():
    setup = setup_of(perceptron(), torch.randn(5, 6))
    TECHNIQUE.apply(setup, plan(["gelu"]))
    assert setup.notices == ["fused_operators replaced layers: 2 by gelu"]
    setup = setup_of(nn.Sequential(nn.LayerNorm(6), nn.GELU()), torch.randn(5, 6))
    TECHNIQUE.apply(setup, plan(True))
    assert setup.notices == ["fused_operators replaced layers: 1 by gelu, 1 by layer_norm"]
    with pytest.raises(PlanError, match="asks for"):
        TECHNIQUE.apply(setup_of(perceptron(), torch.randn(5, 6)), plan(["sigmoid"]))


class CallsFunctions(nn.Module):
    def __init__(self):
        super().__init__()
        self.front, self.back, self.dropout = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(0.1)

    def forward(self, rows):
        return self.back(self.dropout(nn.functional.gelu(self.front(rows))))


def test_a_model_that_calls_functions_is_proposed_to_be_traced():
    setup = setup_of(CallsFunctions(), torch.randn(5, 6))
    assert isinstance(TECHNIQUE.applies(setup), Yes)
    proposed = [(each.value, each.options, each.preserves) for each in TECHNIQUE.candidates(setup)]
    assert proposed == [("traced", {}, Preserves.ROUNDING), ("traced", {"dropout": True}, Preserves.STATISTICS)]


@pytest.mark.parametrize(("options", "name"), [({}, "bias_gelu"), ({"dropout": True}, "bias_gelu_dropout")])
def test_the_log_of_a_traced_model_counts_its_operators_and_state_dict_keys_stay(options, name):
    setup = setup_of(CallsFunctions(), torch.randn(5, 6))
    names = [*setup.model.state_dict()]
    torch.compiler.reset()
    TECHNIQUE.apply(setup, replace(plan("traced"), options=options))
    assert setup.compile is not None
    log = compile_model(setup.model, setup.compile)
    setup.model(torch.randn(5, 6)).sum().backward()
    log.stop()
    assert log.summary().endswith(f"1 graphs, 0 of them again. fused_operators: 1 by {name}")
    assert [*setup.model.state_dict()] == names


def test_options_of_a_trace_are_refused_without_one():
    for choice in (replace(plan(True), options={"dropout": True}), replace(plan("traced"), options={"dropout": 1})):
        with pytest.raises(PlanError, match="asks for"):
            TECHNIQUE.apply(setup_of(perceptron(), torch.randn(5, 6)), choice)


def test_it_applies_where_a_layer_exists_and_not_elsewhere():
    setup = setup_of(perceptron(), torch.randn(5, 6))
    assert isinstance(TECHNIQUE.applies(setup), Yes)
    proposed = [(each.value, each.options) for each in TECHNIQUE.candidates(setup)]
    assert proposed == [(True, {}), ("traced", {})], "there is no dropout"
    verdict = TECHNIQUE.applies(setup_of(nn.Linear(6, 3), torch.randn(5, 6)))
    assert isinstance(verdict, No)
    assert all(each.kind in verdict.reason for each in FUSED_LAYERS.values())
