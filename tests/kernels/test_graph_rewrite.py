"""A traced model uses fused operators and gives the same; all other functions stay unchanged."""

from __future__ import annotations

import copy
from collections import Counter
from functools import partial

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels.attention.scaled_dot_product_attention import CPP
from hasten.kernels.graph_rewrite import NAMES, FusedOperators

CLASSES = torch.arange(15) * 7 % 24
SOFTMAX = {"softmax": 1}
WITH_DROPOUT = (*NAMES, "bias_gelu_dropout")


class Layer(nn.Module):
    """A module of which forward is the function, called with the module and its input."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.front, self.back = nn.Linear(24, 24), nn.Linear(24, 24)
        self.norm = nn.LayerNorm(24)

    def forward(self, x):
        return self.function(self, x)


def traced(model, names=NAMES):
    """A copy that computes as it is traced, and what is rewritten in it once it has been called."""
    torch.compiler.reset()
    backend, copied = FusedOperators(names), copy.deepcopy(model)
    copied.compile(backend=backend)
    return copied, backend.found


def outcome(model, x):
    x = x.clone().requires_grad_()
    torch.manual_seed(1)
    result = model(x)
    result.square().sum().backward()
    return [result, x.grad, *(each.grad for each in model.parameters() if each.grad is not None)]


def residual(layer, x):
    return layer.back(layer.norm(x + layer.front(x)))


def pre_norm(layer, x):
    total = x + layer.front(x)
    return total + layer.back(layer.norm(total))


REWRITTEN = {
    "gelu": (lambda layer, x: functional.gelu(x, approximate="tanh"), {"gelu": 1}),
    "softmax, a function": (lambda layer, x: functional.softmax(x, dim=1), {"softmax": 1}),
    "softmax, a method": (lambda layer, x: layer.front(x).softmax(dim=-1), {"softmax": 1}),
    "layer_norm": (lambda layer, x: functional.layer_norm(x, (24,), eps=1e-3), {"layer_norm": 1}),
    "layer_norm, of torch": (lambda layer, x: torch.layer_norm(x, [24], layer.norm.weight), {"layer_norm": 1}),
    "cross_entropy": (
        lambda layer, x: functional.cross_entropy(layer.front(x).flatten(0, 1), CLASSES, ignore_index=3),
        {"cross_entropy": 1},
    ),
    "cross_entropy, a module": (lambda layer, x: nn.CrossEntropyLoss()(x.flatten(0, 1), CLASSES), {"cross_entropy": 1}),
    "a sum and its norm": (residual, {"add_layer_norm": 1}),
    "a sum that is used again": (pre_norm, {"add_layer_norm": 1}),
    "a product and GELU": (lambda layer, x: layer.back(functional.gelu(layer.front(x))), {"bias_gelu": 1}),
    "a product, GELU and dropout": (
        lambda layer, x: functional.dropout(functional.gelu(layer.front(x)), 0.25, layer.training),
        {"bias_gelu": 1},
    ),
}


@pytest.mark.parametrize("name", REWRITTEN)
def test_functions_are_rewritten_to_operators_and_give_the_same(name):
    torch.manual_seed(0)
    function, wanted = REWRITTEN[name]
    model = Layer(function)
    rewritten, found = traced(model)
    x = torch.randn(3, 5, 24)
    assert_close(outcome(rewritten, x), outcome(model, x), rtol=1e-4, atol=1e-4)
    assert found == wanted


def attend(layer, x, **named):
    heads = torch.cat([layer.front(x), layer.back(x), x], dim=-1).bfloat16()
    attended = functional.scaled_dot_product_attention(*heads.unflatten(-1, (3, 4, 6)).permute(2, 0, 3, 1, 4), **named)
    return attended.transpose(1, 2).flatten(2).float()


@pytest.mark.skipif(CPP.why_plain() is not None, reason=f"attention is torch's own here: {CPP.why_plain()}")
@pytest.mark.parametrize("named", [{}, {"is_causal": True, "scale": 0.3}], ids=["whole", "causal"])
def test_attention_in_bfloat16_is_rewritten(named):
    torch.manual_seed(0)
    model, x = Layer(partial(attend, **named)), torch.randn(3, 5, 24)
    rewritten, found = traced(model)
    assert_close(outcome(rewritten, x), outcome(model, x), rtol=2e-2, atol=5e-2)
    assert found == {"attention": 1}


@pytest.mark.parametrize("left", ["float32", "dropout", "a mask"])
def test_attention_that_is_no_faster_stays_torchs(left):
    def own(layer, x):
        heads = x[:, None] if left == "float32" else x[:, None].bfloat16()
        mask = torch.ones(5, 5, dtype=torch.bool).tril() if left == "a mask" else None
        drops = 0.1 if left == "dropout" else 0.0
        return functional.scaled_dot_product_attention(heads, heads, heads, mask, drops)[:, 0].float() + layer.norm(x)

    rewritten, found = traced(Layer(own))
    rewritten(torch.randn(3, 5, 24))
    assert "attention" not in found


def written_between(layer, x):
    total = x + layer.front(x)
    seen = total.mul_(2)
    return layer.norm(total) + seen


def written_by_a_function(layer, x):
    total = x + layer.front(x)
    functional.relu(total, inplace=True)
    return layer.norm(total)


def seen_between(layer, x):
    product = layer.front(x)
    return functional.gelu(product) * product


UNCHANGED = {
    "softmax that widens": (lambda layer, x: functional.softmax(x, dim=-1, dtype=torch.float64).float(), {}),
    "a norm over two dimensions": (lambda layer, x: functional.layer_norm(x, (5, 24)), {}),
    "a sum of two shapes": (lambda layer, x: layer.norm(x + layer.front(x).mean(0, keepdim=True)), {"layer_norm": 1}),
    "a sum with a number": (lambda layer, x: layer.norm(layer.front(x) + 1), {"layer_norm": 1}),
    "a sum of shares": (lambda layer, x: layer.norm(torch.add(x, layer.front(x), alpha=0.5)), {"layer_norm": 1}),
    "a sum that is written to": (written_between, {"layer_norm": 1}),
    "a sum that a function writes to": (written_by_a_function, {"layer_norm": 1}),
    "a product that is seen": (seen_between, {"gelu": 1}),
    "cross_entropy of probabilities": (lambda layer, x: functional.cross_entropy(x, x.softmax(1).detach()), SOFTMAX),
    "cross_entropy, smoothed": (
        lambda layer, x: functional.cross_entropy(x.flatten(0, 1), CLASSES, label_smoothing=0.1),
        {},
    ),
    "cross_entropy, weighted": (
        lambda layer, x: functional.cross_entropy(x.flatten(0, 1), CLASSES, layer.norm.weight.detach()),
        {},
    ),
    "relu": (lambda layer, x: layer.front(x).relu(), {}),
}


@pytest.mark.parametrize("name", UNCHANGED)
def test_chains_that_another_function_reads_are_not_fused(name):
    torch.manual_seed(0)
    function, wanted = UNCHANGED[name]
    model = Layer(function)
    rewritten, found = traced(model)
    x = torch.randn(3, 5, 24)
    assert_close(outcome(rewritten, x), outcome(model, x), rtol=1e-4, atol=1e-4)
    assert found == wanted


def holding(inner):
    """The tracer steps over a root that is torch's own."""
    model = Layer(lambda layer, x: layer.inner(x))
    model.inner = inner
    return model


def test_a_transformer_layer_of_torch_is_rewritten_and_gives_the_same():
    torch.manual_seed(0)
    model = holding(nn.TransformerEncoderLayer(24, 4, 96, activation="gelu", batch_first=True, norm_first=True))
    x = torch.randn(2, 7, 24)
    rewritten, found = traced(model)
    assert_close(outcome(rewritten, x), outcome(model, x), rtol=1e-4, atol=1e-4)
    assert found == {"layer_norm": 1, "add_layer_norm": 1, "bias_gelu": 1}


def test_dropout_after_gelu_joins_the_pass_where_it_is_requested():
    model = holding(nn.Sequential(nn.Linear(24, 96), nn.GELU(), nn.Dropout(0.25)))
    rewritten, found = traced(model, WITH_DROPOUT)
    x = torch.randn(400, 24)
    dropped = rewritten(x)
    assert found == {"bias_gelu_dropout": 1}
    share = (dropped == 0).float().mean().item()
    assert abs(share - 0.25) < 5 * (0.25 * 0.75 / dropped.numel()) ** 0.5
    kept = dropped != 0
    assert_close(dropped[kept], (model.inner[:2](x) / 0.75)[kept], rtol=1e-4, atol=1e-6)
    torch.manual_seed(3)
    first = rewritten(x)
    torch.manual_seed(3)
    assert torch.equal(first, rewritten(x))


def test_a_model_in_evaluation_is_traced_again_and_drops_nothing():
    model = Layer(lambda layer, x: functional.dropout(functional.gelu(layer.front(x)), 0.5, layer.training))
    rewritten, found = traced(model, WITH_DROPOUT)
    x = torch.randn(4, 24)
    rewritten(x)
    rewritten.eval()
    assert_close(rewritten(x), functional.gelu(model.front(x)))
    assert found == Counter(bias_gelu_dropout=2)


@pytest.mark.parametrize("name", ["a sum that is used again", "gelu"])
def test_rewritten_functions_give_the_same_under_autocast(name):
    torch.manual_seed(0)
    model = Layer(REWRITTEN[name][0])
    rewritten, found = traced(model)
    x = torch.randn(3, 5, 24)
    with torch.autocast("cpu", torch.bfloat16):
        found_there, wanted = rewritten(x), model(x)
    assert found == REWRITTEN[name][1]
    assert found_there.dtype == wanted.dtype
    assert_close(found_there, wanted, rtol=3e-2, atol=3e-2)
