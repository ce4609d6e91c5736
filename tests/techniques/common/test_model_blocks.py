"""Which blocks to recompute: the cheapest selection, and what each block costs."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.errors import PlanError
from hasten.techniques.common.block_costs import measure_segments
from hasten.techniques.common.model_blocks import BlockCost, cheapest_segments
from support import setup_of

costs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=7)


@given(costs=costs, wanted=st.integers(0, 40))
def test_the_segments_free_enough_and_none_of_them_is_dispensable_at_its_price(
    costs: list[tuple[int, int]], wanted: int
):
    blocks = [BlockCost(name=str(place), saved_bytes=b, seconds=float(s)) for place, (b, s) in enumerate(costs)]
    if sum(block.saved_bytes for block in blocks) < wanted:
        with pytest.raises(PlanError, match=f"{wanted} are needed"):
            cheapest_segments(blocks, wanted)
        return
    names = cheapest_segments(blocks, wanted)
    chosen = [block for block in blocks if block.name in names]
    assert [block.name for block in chosen] == names
    assert sum(block.saved_bytes for block in chosen) >= wanted
    prices = [block.seconds / max(block.saved_bytes, 1) for block in chosen]
    others = [block.seconds / max(block.saved_bytes, 1) for block in blocks if block.name not in names]
    assert max(prices, default=0) <= min(others, default=float("inf"))


def test_bytes_are_counted_once_and_without_inputs_and_outputs():
    class Square(nn.Module):
        """Saves its input (for two operations), its weight, `inner` (twice), and the square where x has a gradient."""

        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6, bias=False)

        def forward(self, x: Tensor) -> Tensor:
            inner = self.linear(x)
            return x * (inner * inner)

    setup = setup_of(
        nn.Sequential(Square(), Square()), torch.randn(10, 6), loss=lambda model, batch: model(batch).square().mean()
    )
    measured = measure_segments(setup, forwards=1)
    assert [cost.name for cost in measured] == ["0", "1"]
    rows = 10 * 6 * 4
    assert [cost.saved_bytes for cost in measured] == [rows, 2 * rows]
    assert all(cost.seconds > 0 for cost in measured)
