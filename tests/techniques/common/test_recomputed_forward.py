"""A forward pass that is run again draws what it has drawn, from generators of its own too."""

from __future__ import annotations

import random

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from hasten.data.order.generator_states import set_state, state_of
from hasten.techniques.activation_checkpointing import recompute_in_backward


@pytest.mark.trap(35)
@pytest.mark.parametrize(
    "kind",
    [torch.Generator, np.random.default_rng, np.random.RandomState, random.Random],
    ids=lambda kind: kind.__name__,
)
def test_what_a_block_draws_from_a_generator_of_its_own_is_drawn_again(kind):
    generator, own_is_torchs = kind(), kind is torch.Generator

    class Noisy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear, self.own = nn.Linear(6, 6), [random.SystemRandom(), generator]

        def forward(self, x: Tensor) -> Tensor:
            drawn = torch.rand((), generator=self.own[1]).item() if own_is_torchs else self.own[1].random()
            return torch.sin(self.linear(x) * drawn)

    block, x, begun, gradients, ends = Noisy(), torch.randn(3, 6), state_of(generator), list[Tensor](), list[str]()
    for recompute in (lambda block: None, recompute_in_backward):
        set_state(generator, begun)
        recompute(block)
        block(x).sum().backward()
        gradients.append(block.linear.weight.grad.clone())
        ends.append(str(state_of(generator)))
        block.zero_grad()
    assert torch.equal(*gradients)
    assert ends[0] == ends[1]  # and it goes on from there
