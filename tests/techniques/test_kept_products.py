"""A block that is recomputed may keep what its products gave."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from hasten.techniques.activation_checkpointing import recompute_all_but_products, recompute_in_backward

ATEN = torch.ops.aten


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
def test_kept_products_are_computed_once_and_the_rest_twice(block, product, shape):
    found = []
    for recompute in (lambda block: None, recompute_all_but_products, recompute_in_backward):
        torch.manual_seed(0)
        model = block()
        recompute(model)
        rows = torch.randn(shape, requires_grad=True)
        with Counting() as counting:
            model(rows).square().sum().backward()
        found.append((counting.calls[product], counting.calls[ATEN.tanh.default], rows.grad))
    assert [calls for *calls, _ in found] == [[1, 1], [1, 2], [2, 2]]
    assert all(torch.equal(gradient, found[0][-1]) for *_, gradient in found)
