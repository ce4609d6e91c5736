"""A recomputed block may save the results of its products."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import Any

import pytest
import torch
from functorch.compile import make_boxed_func, min_cut_rematerialization_partition
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.kernels.attention.scaled_dot_product_attention import CPP, attention
from hasten.techniques.activation_checkpointing import recompute_in_backward
from hasten.techniques.common.saved_products import saving_products

ATEN = torch.ops.aten

with_products = partial(recompute_in_backward, saving=saving_products)


class Counting(TorchDispatchMode):
    """calls: of each operation that is really computed inside."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = Counter[object]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[func] += 1
        return func(*args, **(kwargs or {}))


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Linear(8, 8)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return nn.functional.scaled_dot_product_attention(self.mixed(rows), rows, rows).tanh()


@pytest.mark.parametrize(
    ("block", "product", "shape"),
    [
        (lambda: nn.Sequential(nn.Linear(6, 6), nn.Tanh()), ATEN.addmm.default, (64, 6)),
        (lambda: nn.Sequential(nn.Conv2d(3, 3, 3), nn.Tanh()), ATEN.convolution.default, (2, 3, 8, 8)),
        (Attending, ATEN._scaled_dot_product_flash_attention_for_cpu.default, (2, 2, 5, 8)),
    ],
    ids=["linear", "convolution", "attention"],
)
def test_saved_products_are_computed_once_and_the_rest_twice(block, product, shape):
    found = []
    for recompute in (lambda block: None, with_products, recompute_in_backward):
        torch.manual_seed(0)
        model = block()
        recompute(model)
        rows = torch.randn(shape, requires_grad=True)
        with Counting() as counting:
            model(rows).square().sum().backward()
        found.append((counting.calls[product], counting.calls[ATEN.tanh.default], rows.grad))
    assert [calls for *calls, _ in found] == [[1, 1], [1, 2], [2, 2]]
    assert all(torch.equal(gradient, found[0][-1]) for *_, gradient in found)


class Narrow(nn.Module):
    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return attention(rows, rows, rows).tanh()


@pytest.mark.skipif(CPP.why_plain() is not None, reason=f"attention is torch's own here: {CPP.why_plain()}")
def test_hastens_attention_is_a_product_that_is_saved():
    model = Narrow()
    with_products(model)
    with Counting() as counting:
        model(torch.randn(2, 2, 5, 8, dtype=torch.bfloat16, requires_grad=True)).sum().backward()
    assert (counting.calls[torch.ops.hasten.attention.default], counting.calls[ATEN.tanh.default]) == (1, 2)


@pytest.mark.parametrize(("recompute", "products"), [(with_products, 0), (recompute_in_backward, 2)])
def test_a_compiled_backward_pass_computes_no_saved_product_again(recompute, products):
    torch.compiler.reset()
    graphs = []

    def seen(graph: Any, examples: Any) -> Any:
        graphs.append(Counter(node.target for node in graph.graph.nodes))
        return make_boxed_func(graph.forward)

    model = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Tanh())
    recompute(model)
    model.compile(
        backend=aot_autograd(fw_compiler=seen, bw_compiler=seen, partition_fn=min_cut_rematerialization_partition)
    )
    model(torch.randn(64, 6, requires_grad=True)).square().sum().backward()
    forward, backward = graphs
    assert forward[ATEN.addmm.default] == forward[ATEN.tanh.default] == backward[ATEN.tanh.default] == 2
    assert backward[ATEN.addmm.default] == products
