from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.utils import flop_counter
from torch.utils.checkpoint import checkpoint

from hasten.measure.flop_count import profile_flops

ROWS = 8


def run_of(model: nn.Module, inputs: torch.Tensor):
    return lambda: model(inputs).sum().backward()


def test_a_linear_layer_costs_three_products_and_the_first_only_two():
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    profile = profile_flops(run_of(model, torch.randn(ROWS, 16)), model, ROWS)
    first, second = 2 * 16 * 32, 2 * 32 * 4
    assert profile.by_module == {
        "": 2 * first + 3 * second,
        "0": 2 * first,
        "2": 3 * second,
    }
    assert profile.flops_per_sample == 2 * first + 3 * second
    assert next(iter(profile.by_module)) == ""
    assert profile.uncounted == ()


def test_a_convolution_costs_a_kernel_at_every_place_of_its_output():
    model = nn.Conv2d(3, 8, 5, stride=2, padding=2, bias=False)
    profile = profile_flops(run_of(model, torch.randn(2, 3, 12, 12, requires_grad=True)), model, 2)
    assert profile.flops_per_sample == 3 * (2 * 8 * 3 * 5 * 5) * 6 * 6


def test_fused_attention_costs_two_products_forward_and_five_backward():
    class Attention(nn.Module):
        def forward(self, query, key, value):
            return nn.functional.scaled_dot_product_attention(query, key, value)

    heads, length, keys, width = 4, 8, 12, 16
    query = torch.randn(2, heads, length, width, requires_grad=True)
    key = torch.randn(2, heads, keys, width, requires_grad=True)
    value = torch.randn(2, heads, keys, width, requires_grad=True)
    model = Attention()
    profile = profile_flops(lambda: model(query, key, value).sum().backward(), model, 2)
    assert profile.flops_per_sample == 7 * 2 * heads * length * keys * width


def test_checkpointed_layers_count_the_forward_pass_twice():
    model = nn.Sequential(nn.Linear(16, 16), nn.Tanh())
    inputs = torch.randn(ROWS, 16, requires_grad=True)
    profile = profile_flops(lambda: checkpoint(model, inputs, use_reentrant=False).sum().backward(), model, ROWS)
    assert profile.flops_per_sample == 4 * 2 * 16 * 16


def test_what_has_no_formula_is_listed_and_not_passed_over():
    with torch.library._scoped_library("hasten_test", "FRAGMENT") as library:
        library.define("twice(Tensor x) -> Tensor")
        library.impl("twice", lambda x: 2 * x, "CompositeExplicitAutograd")
        model = nn.Linear(4, 4)
        vector = torch.randn(4)

        def run() -> None:
            torch.ops.hasten_test.twice(model(torch.randn(2, 4)))
            torch.mv(model.weight, vector)

        profile = profile_flops(run, model, 2)
    assert profile.uncounted == ("aten::mv", "hasten_test::twice")
    assert profile.flops_per_sample == 2 * 4 * 4


def jagged() -> torch.Tensor:
    rows = [torch.randn(count, 4) for count in (2, 3)]
    return torch.nested.nested_tensor(rows, layout=torch.jagged)


def refuse(*given: object, **named: object) -> int:
    raise NotImplementedError("no formula\nfor these shapes")


@pytest.mark.parametrize(
    ("inputs", "formulas", "reason"),
    [
        (jagged(), {}, "Multiple dispatch failed"),
        (torch.randn(2, 4), {torch.ops.aten.addmm: refuse}, "NotImplementedError: no formula"),
    ],
    ids=["nested", "formula"],
)
def test_where_the_counter_fails_the_work_is_unknown_and_the_reason_known(monkeypatch, inputs, formulas, reason):
    for operator, formula in formulas.items():
        monkeypatch.setitem(flop_counter.flop_registry, operator, formula)
    model = nn.Linear(4, 4)
    profile = profile_flops(lambda: model(inputs), model, 2)
    assert (profile.flops_per_sample, profile.by_module) == (None, {})
    assert reason in profile.failed
    assert "\n" not in profile.failed
    assert not model._forward_hooks
    assert not model._forward_pre_hooks


def test_an_error_of_the_model_itself_is_raised():
    model = nn.Linear(4, 4)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        profile_flops(lambda: model(torch.randn(2, 3)), model, 2)
