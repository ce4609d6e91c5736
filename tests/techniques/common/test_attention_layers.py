"""Layers compute attention by hasten's operator in bfloat16, and by torch's where it computes otherwise."""

from __future__ import annotations

import copy
from functools import partial

import pytest
import torch
from torch import fx, nn
from torch.nn import functional
from torch.testing import assert_close

from hasten.facts.choice import Choice, Preserves
from hasten.kernels.attention import scaled_dot_product_attention as operator
from hasten.techniques.activation_checkpointing import recompute_in_backward
from hasten.techniques.common import attention_layers
from hasten.techniques.common.saved_products import saving_products
from hasten.techniques.contract import Yes
from hasten.techniques.fused_operators import TECHNIQUE, find, replace_forward
from support import setup_of

needs_the_instruction = pytest.mark.skipif(
    operator.CPP.why_plain() is not None, reason=f"attention is torch's own here: {operator.CPP.why_plain()}"
)
OURS, BACKWARD = "hasten::attention", "hasten::attention_backward"

with_products = partial(recompute_in_backward, saving=saving_products)


class Attention(nn.Module):
    def __init__(self, **named):
        super().__init__()
        torch.manual_seed(0)
        self.projected, self.mixed, self.named = nn.Linear(32, 96), nn.Linear(32, 32), named

    def forward(self, rows, **named):
        heads = self.projected(rows).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*heads, **self.named, **named)
        return self.mixed(attended.transpose(1, 2).flatten(2))


def operations(model, *given, dtype=torch.bfloat16, **named):
    """The result, and the names of the operations that a forward pass and its backward pass call."""
    with (
        torch.profiler.profile(acc_events=True) as profile,
        torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
    ):
        found = model(*given, **named)
        (found[0] if isinstance(found, tuple) else found).float().square().sum().backward()
    return found, {event.key for event in profile.key_averages()}


def pair(model):
    """The model, and a copy whose layers are replaced."""
    other = copy.deepcopy(model)
    replace_forward(find(other))
    return model, other


@pytest.fixture
def calls(monkeypatch):
    """What hasten's attention returns to layers."""
    found = []

    def noted(*tensors, **named):
        found.append(operator.attention(*tensors, **named))
        return found[-1]

    monkeypatch.setattr(attention_layers, "attention", noted)
    return found


@needs_the_instruction
@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_that_calls_the_function_gives_the_same_by_the_operator(causal):
    model, replaced = pair(Attention(is_causal=causal))
    rows = torch.randn(3, 20, 32)
    (wanted, _), (found, called) = operations(model, rows), operations(replaced, rows)
    assert {OURS, BACKWARD} <= called
    assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    for one, other in zip(replaced.parameters(), model.parameters(), strict=True):
        assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(
    ("named", "dtype"),
    [
        ({"attn_mask": torch.ones(20, 20, dtype=torch.bool).tril()}, torch.bfloat16),
        ({"dropout_p": 0.5}, torch.bfloat16),
        ({}, torch.float32),
    ],
    ids=["a mask", "dropout", "float32"],
)
def test_masks_dropout_and_float32_are_computed_by_torch(named, dtype):
    rows, found = torch.randn(3, 20, 32), []
    for each in pair(Attention()):
        torch.manual_seed(1)
        result, called = operations(each, rows, dtype=dtype, **named)
        assert OURS not in called
        found.append(result)
    assert_close(*found, rtol=0, atol=0)


class Helper(nn.Module):
    """Reads and writes the globals of its module, and calls the function inside a function of its own."""

    count = 0

    def forward(self, heads, *, scale=3):
        def attend():
            type(self).count += 1
            return functional.scaled_dot_product_attention(heads, heads, heads)

        return eval("SCALE") * scale * attend()


class Inheriting(Helper):
    def forward(self, heads, **named):
        halves = [functional.scaled_dot_product_attention(each, each, each) for each in heads.split(10, dim=-2)]
        return super().forward(heads, **named) + torch.cat(halves, dim=-2)


class Own(nn.Module):
    """Its own method has the function's name."""

    def scaled_dot_product_attention(self, query, key, value):
        return torch.softmax(query @ key.mT, -1) @ value

    def forward(self, heads):
        own = self.scaled_dot_product_attention(heads, heads, functional.relu(heads))
        return own + functional.scaled_dot_product_attention(heads, heads, heads)


SCALE = 2.0
HEADS = torch.randn(1, 2, 20, 32, generator=torch.Generator().manual_seed(0)).bfloat16()


@pytest.mark.parametrize(("kind", "times"), [(Helper, 1), (Inheriting, 3), (Own, 1)])
def test_a_forward_method_does_everything_it_did(kind, times, calls):
    wanted, layer = kind()(HEADS), kind()
    assert find(layer) == {"attention": [layer]}
    replace_forward(find(layer))
    assert_close(layer(HEADS), wanted, rtol=2e-2, atol=2e-2)
    assert len(calls) == times
    if kind is Helper:
        assert_close(layer(HEADS, scale=6), 2 * layer(HEADS))


def test_torch_fx_traces_a_replaced_layer_to_torchs_function():
    layer = Own()
    replace_forward(find(layer))
    traced = fx.symbolic_trace(layer)
    assert functional.scaled_dot_product_attention in {node.target for node in traced.graph.nodes}


class Pooling(nn.Module):
    """Its blocks attend in a method of their own, and the model attends to their output."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(32, 32)

        def attend(self, rows):
            heads = self.inner(rows)[:, None]
            return functional.scaled_dot_product_attention(heads, heads, heads)[:, 0]

        def forward(self, rows):
            return rows + self.attend(rows)

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.blocks, self.query = nn.Sequential(*(self.Block() for _ in range(2))), nn.Parameter(torch.randn(1, 32))

    def forward(self, rows):
        heads = self.blocks(rows)[:, None]
        query = self.query.to(heads.dtype).expand(len(rows), 1, 1, 32)
        return functional.scaled_dot_product_attention(query, heads, heads)[:, 0]


@pytest.mark.parametrize("recompute", [recompute_in_backward, with_products])
def test_recomputed_blocks_in_a_replaced_layer_give_the_same(recompute):
    model, replaced = pair(Pooling())
    for block in replaced.blocks:
        recompute(block)
    rows = torch.randn(3, 20, 32)
    (wanted, _), (found, _) = operations(model, rows), operations(replaced, rows)
    assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert_close(replaced.query.grad, model.query.grad, rtol=5e-2, atol=5e-2)


class Static(nn.Module):
    @staticmethod
    def forward(heads):
        return functional.scaled_dot_product_attention(heads, heads, heads)


def test_static_methods_and_torchs_multihead_attention_are_skipped():
    assert find(nn.Sequential(Static(), nn.MultiheadAttention(32, 4))) == {}


def test_a_processor_without_the_instruction_keeps_torchs_attention_and_a_notice_says_why(monkeypatch):
    reason = "this processor lacks something"
    monkeypatch.setattr(operator.CPP, "library", reason, raising=False)
    setup = setup_of(nn.Sequential(Attention(), nn.LayerNorm(32)), torch.randn(3, 20, 32))
    assert isinstance(TECHNIQUE.applies(setup), Yes)
    TECHNIQUE.apply(setup, Choice(technique="fused_operators", value=True, preserves=Preserves.ROUNDING))
    assert setup.notices == [
        f"fused_operators: attention: these layers were not replaced: {reason}",
        "fused_operators replaced layers: 1 by layer_norm",
    ]


def test_torch_compile_traces_a_replaced_layer_without_a_graph_break():
    torch.compiler.reset()
    _, replaced = pair(Attention())
    explained = torch._dynamo.explain(replaced)(torch.randn(3, 20, 32))
    assert explained.graph_break_count == 0
