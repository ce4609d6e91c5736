"""Layers that attend compute by hasten's attention in bfloat16, and by torch's where it computes otherwise."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from hasten.facts.choice import Choice, Preserves
from hasten.kernels import attention
from hasten.techniques.activation_checkpointing import recompute_all_but_products, recompute_in_backward
from hasten.techniques.contract import Yes
from hasten.techniques.fused_operators import TECHNIQUE, exchange, find
from support import laptop, setup_of

needs_the_instruction = pytest.mark.skipif(
    attention.why_plain() is not None, reason=f"attention is torch's own here: {attention.why_plain()}"
)


class Attending(nn.Module):
    """How it calls the function is the subclass's."""

    def __init__(self, **named):
        super().__init__()
        torch.manual_seed(0)
        self.projected, self.mixed, self.named = nn.Linear(32, 96), nn.Linear(32, 32), named

    def forward(self, rows, **named):
        heads = self.projected(rows).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(*heads, **self.named, **named)
        return self.mixed(attended.transpose(1, 2).flatten(2))


def multihead(**named):
    torch.manual_seed(0)
    return nn.MultiheadAttention(32, 4, batch_first=True, **named)


def operations(model, *given, dtype=torch.bfloat16, **named):
    """What it gives, and the names of the operations that a forward pass and its backward pass call."""
    with (
        torch.profiler.profile(acc_events=True) as profile,
        torch.autocast("cpu", dtype, enabled=dtype != torch.float32),
    ):
        found = model(*given, **named)
        (found[0] if isinstance(found, tuple) else found).float().square().sum().backward()
    return found, {event.key for event in profile.key_averages()}


def pair(model):
    other = copy.deepcopy(model)
    exchange(find(other))
    return model, other


OURS, BACKWARD = "hasten::attention", "hasten::attention_backward"


@needs_the_instruction
@pytest.mark.parametrize("causal", [False, True])
def test_a_layer_that_calls_the_function_computes_by_ours_and_gives_the_same(causal):
    model, exchanged = pair(Attending(is_causal=causal))
    rows = torch.randn(3, 20, 32)
    (wanted, _), (found, called) = operations(model, rows), operations(exchanged, rows)
    assert {OURS, BACKWARD} <= called
    assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    for one, other in zip(exchanged.parameters(), model.parameters(), strict=True):
        assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(
    "named",
    [{"attn_mask": torch.ones(20, 20, dtype=torch.bool).tril()}, {"dropout_p": 0.5}],
    ids=["a mask", "dropout"],
)
def test_masks_and_dropout_are_torchs(named):
    model, exchanged = pair(Attending())
    rows, found = torch.randn(3, 20, 32), []
    for each in (model, exchanged):
        torch.manual_seed(1)
        given, called = operations(each, rows, **named)
        assert OURS not in called
        found.append(given)
    assert_close(*found, rtol=0, atol=0)


def test_in_float32_attention_is_torchs():
    model, exchanged = pair(Attending())
    rows = torch.randn(3, 20, 32)
    (wanted, _), (found, called) = (
        operations(model, rows, dtype=torch.float32),
        operations(exchanged, rows, dtype=torch.float32),
    )
    assert OURS not in called
    assert_close(found, wanted, rtol=0, atol=0)


@needs_the_instruction
@pytest.mark.parametrize("crossed", [False, True], ids=["itself", "another"])
@pytest.mark.parametrize("bias", [False, True], ids=["without bias", "with bias"])
def test_torchs_layer_of_many_heads_computes_by_ours_and_gives_the_same(crossed, bias):
    model, exchanged = pair(multihead(bias=bias))
    rows = torch.randn(3, 20, 32)
    given = (rows, *[torch.randn(3, 11, 32)] * 2) if crossed else (rows,) * 3
    (wanted, _), (found, called) = (operations(each, *given, need_weights=False) for each in (model, exchanged))
    assert {OURS, BACKWARD} <= called
    assert found[1] is wanted[1] is None
    assert_close(found[0], wanted[0], rtol=2e-2, atol=2e-2)
    for one, other in zip(exchanged.parameters(), model.parameters(), strict=True):
        assert_close(one.grad, other.grad, rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize(
    "shapes",
    [
        ((2, 5, 32), (2, 7, 32), (2, 8, 32)),
        ((2, 5, 32), (2, 7, 32), (1, 7, 32)),
        ((2, 5, 32), (1, 7, 32), (1, 7, 32)),
        ((2, 5, 32), (2, 7, 32), (7, 32)),
    ],
    ids=["a value too many", "one sample of values", "one sample of both", "no batch of values"],
)
def test_what_that_layer_does_not_take_is_refused_as_before(shapes):
    given = [torch.randn(shape) for shape in shapes]
    for each in pair(multihead()):
        with pytest.raises((AssertionError, RuntimeError)):
            each(*given, need_weights=False)


@pytest.mark.parametrize("asked", ["weights", "a mask", "padding", "evaluation", "one sample"])
def test_what_that_layer_is_asked_for_besides_is_torchs(asked):
    model, exchanged = pair(multihead())
    rows = torch.randn(20, 32) if asked == "one sample" else torch.randn(3, 20, 32)
    named = {
        "weights": {},
        "a mask": {"need_weights": False, "attn_mask": torch.zeros(20, 20)},
        "padding": {"need_weights": False, "key_padding_mask": torch.arange(20).expand(3, 20) > 15},
        "evaluation": {"need_weights": False},
        "one sample": {"need_weights": False},
    }[asked]
    for each in (model, exchanged):
        each.train(asked != "evaluation")
    (wanted, _), (found, called) = (operations(each, rows, rows, rows, **named) for each in (model, exchanged))
    assert OURS not in called
    assert_close(found, wanted, rtol=0, atol=0)


def test_a_layer_of_many_heads_whose_batches_come_second_later_gives_what_torchs_gives():
    model, exchanged = pair(multihead())
    model.batch_first = exchanged.batch_first = False
    rows = torch.randn(3, 20, 32)
    given = [each(rows, rows, rows, need_weights=False)[0] for each in (model, exchanged)]
    assert_close(*given, rtol=0, atol=0)


def test_a_layer_of_many_heads_that_is_to_drop_later_drops():
    _, exchanged = pair(multihead())
    rows = torch.randn(3, 20, 32)
    exchanged.dropout = 0.5
    first, second = (exchanged(rows, rows, rows, need_weights=False)[0] for _ in range(2))
    assert not torch.equal(first, second)


class Pooling(nn.Module):
    """Blocks that attend by a method of theirs, and a model that attends by itself to what they give."""

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.named = nn.Linear(32, 32), {}

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


@pytest.mark.parametrize("recompute", [recompute_in_backward, recompute_all_but_products])
def test_blocks_that_are_recomputed_inside_attend_as_they_did(recompute):
    model, exchanged = pair(Pooling())
    for block in exchanged.blocks:
        recompute(block)
    rows = torch.randn(3, 20, 32)
    (wanted, _), (found, _) = operations(model, rows), operations(exchanged, rows)
    assert_close(found, wanted, rtol=2e-2, atol=2e-2)
    assert_close(exchanged.query.grad, model.query.grad, rtol=5e-2, atol=5e-2)


def test_layers_of_many_heads_that_compute_otherwise_are_left_alone():
    others = [
        multihead(dropout=0.1),
        multihead(kdim=8, vdim=8),
        multihead(add_bias_kv=True),
        multihead(add_zero_attn=True),
        nn.MultiheadAttention(32, 4),
    ]
    assert find(nn.Sequential(*others)) == {}


@needs_the_instruction
def test_torchs_encoder_computes_by_ours_and_gives_the_same():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    model, exchanged = pair(nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    rows = torch.randn(3, 20, 32)
    (wanted, _), (found, called) = operations(model, rows), operations(exchanged, rows)
    assert OURS in called
    assert_close(found, wanted, rtol=5e-2, atol=5e-2)


def test_a_processor_without_the_products_keeps_torchs_attention_and_says_so(monkeypatch):
    reason = "this processor lacks something"
    monkeypatch.setattr(attention._COMPILED, "_library", reason, raising=False)
    setup = setup_of(nn.Sequential(Attending(), nn.LayerNorm(32)), torch.randn(3, 20, 32))
    assert isinstance(TECHNIQUE.applies(setup, laptop()), Yes)
    TECHNIQUE.apply(setup, Choice(technique="fused_operators", value=True, preserves=Preserves.ROUNDING))
    assert setup.notices == [
        f"fused_operators: attention: layers compute as they did, for {reason}",
        "fused_operators: 1 by layer_norm",
    ]


def test_torchs_compiler_takes_a_layer_that_attends_whole():
    torch.compiler.reset()
    _, exchanged = pair(Attending())
    explained = torch._dynamo.explain(exchanged)(torch.randn(3, 20, 32))
    assert explained.graph_break_count == 0
