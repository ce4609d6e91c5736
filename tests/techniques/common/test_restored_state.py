"""A recomputed forward draws the same random numbers, also from generators of its own."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hasten.data.order.randomness import generator_state, set_generator_state
from hasten.techniques.activation_checkpointing import recompute_in_backward


@pytest.mark.trap(35)
@pytest.mark.parametrize(
    "kind",
    [torch.Generator, np.random.default_rng, np.random.RandomState, random.Random],
    ids=lambda kind: kind.__name__,
)
def test_a_recomputed_block_draws_the_same_from_its_own_generator(kind):
    generator, own_is_torchs = kind(), kind is torch.Generator

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.own = nn.Linear(6, 6), [random.SystemRandom(), generator]

        def forward(self, x: Tensor) -> Tensor:
            drawn = torch.rand((), generator=self.own[1]).item() if own_is_torchs else self.own[1].random()
            return torch.sin(self.linear(x) * drawn)

    block, x, begun, gradients, ends = (
        Noisy(),
        torch.randn(3, 6),
        generator_state(generator),
        list[Tensor](),
        list[str](),
    )
    for recompute in (lambda block: None, recompute_in_backward):
        set_generator_state(generator, begun)
        recompute(block)
        block(x).sum().backward()
        gradients.append(block.linear.weight.grad.clone())
        ends.append(str(generator_state(generator)))
        block.zero_grad()
    assert torch.equal(*gradients)
    assert ends[0] == ends[1]  # and it goes on from there
