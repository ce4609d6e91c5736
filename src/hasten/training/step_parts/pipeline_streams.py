"""Random numbers of a pipeline: every stage draws the same ones around the blocks, wherever the model is cut.

Generators are seeded for each microbatch, and torch's before each block and after it too, from one number that all
stages draw at the start of a step.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hasten.data.order.randomness import derived, reseed, undisturbed

_BEFORE_ALL = -1


class Streams:
    def __init__(self, device: torch.device) -> None:
        self._device, self._seed, self._microbatch = device, 0, 0
        self._open = False  # else the loss is called to find shapes or the order of blocks

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """Around a step, or a batch of an evaluation. Draws one number; the global generators are restored to where
        they were then."""
        self._seed = int(torch.randint(2**62, (), dtype=torch.int64))
        with undisturbed(self._device):
            yield

    @contextmanager
    def of_microbatch(self, number: int) -> Iterator[None]:
        self._microbatch, self._open = number, True
        reseed(derived(self._seed, number))
        self._begin(_BEFORE_ALL)
        try:
            yield
        finally:
            self._open = False

    def before_block(self, number: int) -> None:
        self._begin(2 * number)

    def after_block(self, number: int) -> None:
        """Called for a block that was skipped, too."""
        self._begin(2 * number + 1)

    def _begin(self, place: int) -> None:
        if not self._open:
            return
        number = derived(self._seed, self._microbatch, place)
        torch.default_generator.manual_seed(number)
        if self._device.type == "cuda":
            torch.cuda.default_generators[self._device.index or 0].manual_seed(number)
