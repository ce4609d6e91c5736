"""Random numbers of a pipeline: every stage draws the same ones around the blocks, wherever the model is cut.

Generators are seeded for each microbatch, before each block and after it, from one number that all stages draw at the
start of a step. A generator that the job declares continues from one microbatch to the next as far as it has drawn
before the first block; after that it is seeded as the global ones are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from hasten.data.order.randomness import derived, reseed, undisturbed
from hasten.training.state.declared_state import DeclaredState

_BEFORE_ALL = -1


class Streams:
    """declared: with the generators that the job declares."""

    def __init__(self, device: torch.device, declared: DeclaredState) -> None:
        self._device, self._declared = device, declared
        self._seed, self._microbatch = 0, 0
        self._starts = list[list[Any]]()  # states of the declared generators at the start of each microbatch
        self._open = False

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """Around a step, or a batch of an evaluation. Draws one number; the global generators are restored to where
        they were then."""
        self._seed = int(torch.randint(2**62, (), dtype=torch.int64))
        self._starts = [self._declared.generator_states()]
        with undisturbed(self._device):
            yield
        self._declared.set_generator_states(self._starts[-1])  # a recomputed block may have drawn since

    @contextmanager
    def of_microbatch(self, number: int) -> Iterator[None]:
        self._declared.set_generator_states(self._starts[number])
        self._microbatch, self._open = number, True
        self._begin(_BEFORE_ALL)
        try:
            yield
        finally:
            self._open = False
        self._declared.set_generator_states(self._starts[-1])

    def before_block(self, number: int) -> None:
        self._begin_at(2 * number)

    def after_block(self, number: int) -> None:
        """Called for a block that was skipped, too."""
        self._begin_at(2 * number + 1)

    def _begin_at(self, place: int) -> None:
        if not self._open:  # the loss is called to find shapes or the order of blocks
            return
        if len(self._starts) == self._microbatch + 1:
            self._starts.append(self._declared.generator_states())
        self._declared.reseed_generators(self._begin(place))

    def _begin(self, place: int) -> int:
        number = derived(self._seed, self._microbatch, place)
        reseed(number)
        if self._device.type == "cuda":
            torch.cuda.default_generators[self._device.index or 0].manual_seed(number)
        return number
