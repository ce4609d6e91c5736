"""Forward methods of many kinds that attend: exchanged or left alone, they do all that they did."""

from __future__ import annotations

import gc
import importlib
import weakref
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import fx, nn
from torch.nn import functional
from torch.testing import assert_close

from hasten.kernels import attention
from hasten.techniques import _attending
from hasten.techniques.fused_operators import exchange, find

needs_the_instruction = pytest.mark.skipif(
    attention.why_plain() is not None, reason=f"attention is torch's own here: {attention.why_plain()}"
)
CALLS, SCALE = 0, 2.0

PACKAGE = {
    "__init__.py": "",
    "helper.py": "def twice(heads): return 2 * heads",
    "model.py": """
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

class Lazy(nn.Module):
    def forward(self, heads):
        from .helper import twice
        return twice(scaled_dot_product_attention(heads, heads, heads))
""",
}


class Counting(nn.Module):
    def forward(self, heads):
        def attend():
            global CALLS
            CALLS += 1
            return functional.scaled_dot_product_attention(heads, heads, heads)

        return attend() * CALLS


class Looking(nn.Module):
    def forward(self, heads):
        return globals()["SCALE"] * torch.nn.functional.scaled_dot_product_attention(heads, heads, heads)


class Evaluating(nn.Module):
    def forward(self, heads):
        return eval("SCALE") * nn.functional.scaled_dot_product_attention(heads, heads, heads)


class Setting(nn.Module):
    def forward(self, heads):
        functional.last_shape = heads.shape  # pyright: ignore[reportAttributeAccessIssue]
        return functional.scaled_dot_product_attention(heads, heads, heads)


class Defaulting(nn.Module):
    def forward(self, heads, *, layer=3):
        return layer * functional.scaled_dot_product_attention(heads, heads, heads)


class Inheriting(Defaulting):
    def forward(self, heads, **named):
        halves = [functional.scaled_dot_product_attention(each, each, each) for each in heads.split(10, dim=-2)]
        return super().forward(heads, **named) + torch.cat(halves, dim=-2)


class Static(nn.Module):
    @staticmethod
    def forward(heads):
        return functional.scaled_dot_product_attention(heads, heads, heads)


class Own(nn.Module):
    def scaled_dot_product_attention(self, query, key, value):
        return torch.softmax(query @ key.mT, -1) @ value

    def forward(self, heads):
        return self.scaled_dot_product_attention(heads, heads, functional.relu(heads))


class Both(Own):
    def forward(self, heads):
        own = self.scaled_dot_product_attention(heads, heads, heads)
        return own + functional.scaled_dot_product_attention(heads, heads, heads)


class Local(nn.Module):
    def forward(self, heads):
        from torch.nn import functional as here

        return here.scaled_dot_product_attention(heads, heads, heads)


class Mine:
    @staticmethod
    def scaled_dot_product_attention(query, key, value):
        return torch.softmax(query @ key.mT, -1) @ value


class Preferring(nn.Module):
    mine = Mine

    def forward(self, heads):
        return (self.mine or functional).scaled_dot_product_attention(heads, heads, heads)


class Branching(nn.Module):
    def forward(self, heads):
        return (Mine if heads.shape[-1] == 32 else functional).scaled_dot_product_attention(heads, heads, heads)


class BranchingEarly(nn.Module):
    mine: Any = SimpleNamespace(functional=Mine)

    def forward(self, heads):
        return (self.mine or torch.nn).functional.scaled_dot_product_attention(heads, heads, heads)


NAMES = " or ".join(f"heads.name_{number}" for number in range(300))


class NamingMany(nn.Module):
    """So many that the number of the function's name does not fit into one instruction."""

    mine = Mine
    exec(f"""def forward(self, heads):
        if heads is None:
            return {NAMES}
        return (self.mine or functional).scaled_dot_product_attention(heads, heads, heads)
    """)


def heads() -> torch.Tensor:
    torch.manual_seed(0)
    return torch.randn(1, 2, 20, 32).bfloat16()


def ours(monkeypatch: pytest.MonkeyPatch) -> list[torch.Tensor]:
    """What hasten's attention gives from now on to layers."""
    given: list[torch.Tensor] = []

    def noted(*tensors, **named):
        given.append(attention.attention(*tensors, **named))
        return given[-1]

    monkeypatch.setattr(_attending, "attention", noted)
    return given


FOLLOWED = [Counting, Looking, Evaluating, Setting, Defaulting, Inheriting]


@pytest.mark.parametrize("kind", FOLLOWED, ids=lambda kind: kind.__name__)
def test_a_method_does_all_that_it_did(kind, monkeypatch):
    plain, exchanged, given = kind(), kind(), ours(monkeypatch)
    assert find(exchanged) == {"attention": [exchanged]}
    exchange(find(exchanged))
    found = []
    for layer in (plain, exchanged):
        monkeypatch.setitem(globals(), "CALLS", 0)
        monkeypatch.setattr(functional, "last_shape", None, raising=False)
        found.append((layer(heads()), CALLS, functional.last_shape))  # pyright: ignore[reportAttributeAccessIssue]
    assert given
    assert_close(found[1][0], found[0][0], rtol=2e-2, atol=2e-2)
    assert found[1][1:] == found[0][1:]


def test_a_method_is_given_its_keywords_whatever_they_are_called():
    exchanged = Defaulting()
    exchange(find(exchanged))
    assert_close(exchanged(heads(), layer=6), 2 * exchanged(heads()))


def test_a_method_imports_from_its_own_package(tmp_path, monkeypatch):
    (tmp_path / "attending_package").mkdir()
    for name, text in PACKAGE.items():
        (tmp_path / "attending_package" / name).write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    layer, given = importlib.import_module("attending_package.model").Lazy(), ours(monkeypatch)
    wanted = layer(heads())
    exchange(find(layer))
    assert_close(layer(heads()), wanted, rtol=2e-2, atol=2e-2)
    assert len(given) == 1


LEFT_ALONE = [Static, Own, Both, Local, Preferring, Branching, BranchingEarly, NamingMany]


@pytest.mark.parametrize("kind", LEFT_ALONE, ids=lambda kind: kind.__name__)
def test_a_method_that_is_not_followed_is_left_alone(kind):
    assert find(kind()) == {}


def test_who_puts_a_function_in_the_place_of_torchs_is_heard(monkeypatch):
    layer, torchs, calls = Defaulting(), functional.scaled_dot_product_attention, []
    exchange(find(layer))

    def observed(*given, **named):
        calls.append(given)
        return torchs(*given, **named)

    monkeypatch.setattr(functional, "scaled_dot_product_attention", observed)
    layer(heads())
    assert len(calls) == 1
    assert find(Defaulting()) == {}


def test_a_forward_method_that_takes_the_place_of_another_later_is_called(monkeypatch):
    class Callable:
        def __call__(self, layer, heads):
            return heads

    layer = Defaulting()
    exchange(find(layer))
    monkeypatch.setattr(Defaulting, "forward", Callable())
    assert torch.equal(layer(heads()), heads())


def test_a_layer_is_traced_by_torch_fx_as_before():
    layer = Defaulting()
    exchange(find(layer))
    traced = fx.symbolic_trace(layer)
    assert functional.scaled_dot_product_attention in {node.target for node in traced.graph.nodes}


def test_what_a_method_closes_over_is_freed_with_its_class():
    def looked_at():
        held = nn.Linear(2, 2)

        class Closing(nn.Module):
            def forward(self, heads):
                return functional.scaled_dot_product_attention(heads, heads, heads) + held.weight.sum()

        layer = Closing()
        exchange(find(layer))
        layer(heads())
        return weakref.ref(held)

    reference = looked_at()
    gc.collect()
    assert reference() is None
