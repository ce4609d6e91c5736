"""Which blocks to recompute: the cheapest selection, and what each block costs."""

from __future__ import annotations

import itertools

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from hasten.errors import PlanError
from hasten.techniques.common.block_costs import measure_segments
from hasten.techniques.common.model_blocks import BlockCost, cheapest_segments
from support import setup_of

costs = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=7)


@settings(max_examples=150)
@given(costs=costs, wanted=st.integers(0, 40))
def test_the_cheapest_segments_are_those_of_an_exhaustive_search(costs: list[tuple[int, int]], wanted: int):
    blocks = [BlockCost(name=str(place), saved_bytes=b, seconds=float(s)) for place, (b, s) in enumerate(costs)]
    sets = itertools.chain.from_iterable(itertools.combinations(blocks, size) for size in range(len(blocks) + 1))
    enough = [sum(b.seconds for b in each) for each in sets if sum(b.saved_bytes for b in each) >= wanted]
    if not enough:
        with pytest.raises(PlanError, match=f"{wanted} are needed"):
            cheapest_segments(blocks, wanted)
        return
    names = cheapest_segments(blocks, wanted)
    chosen = [block for block in blocks if block.name in names]
    assert [block.name for block in chosen] == names
    assert sum(block.saved_bytes for block in chosen) >= wanted
    assert sum(block.seconds for block in chosen) == min(enough)


def test_many_blocks_of_few_kinds_are_chosen_at_once():
    kinds = [(100, 1.0), (300, 2.0), (50, 0.25)]
    blocks = [BlockCost(name=str(n), saved_bytes=kinds[n % 3][0], seconds=kinds[n % 3][1]) for n in range(240)]
    assert sum(int(name) % 3 == 2 for name in cheapest_segments(blocks, 80 * 50)) == 80


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
