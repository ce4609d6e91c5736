"""What is drawn at random while the stages of a pipeline compute one microbatch.

Each stage calls the whole loss, and computes its own blocks alone. What is drawn around them, noise that is added to a
sample or a mask over its words, has to be the same on every stage: a later one computes the target of what an earlier
one has seen. So all generators begin anew with each microbatch, before each block and behind it, from a number that all
stages draw alike once in a step: who computes a block moves nothing else that is drawn.

A generator that the job declares goes on from one microbatch to the next as far as it has drawn before the first
block, where all stages come. Behind that it begins anew, as the global ones do.
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
    """own: the generators that the job declares."""

    def __init__(self, device: torch.device, own: DeclaredState) -> None:
        self._device, self._own = device, own
        self._seed, self._microbatch = 0, 0
        self._begun = list[list[Any]]()  # the states of the job's own, as each microbatch began
        self._open = False

    @contextmanager
    def of_step(self) -> Iterator[None]:
        """Around a step, or a batch of an evaluation: draws one number, which all stages do alike. Afterwards, the
        global generators are where they were then."""
        self._seed, self._begun = int(torch.randint(2**62, (), dtype=torch.int64)), [self._own.generator_states()]
        with undisturbed(self._device):
            yield
        # Whoever has drawn since, such as a block that is computed again.
        self._own.set_generator_states(self._begun[-1])

    @contextmanager
    def of_microbatch(self, number: int) -> Iterator[None]:
        """Inside, what is drawn is that of this microbatch."""
        self._own.set_generator_states(self._begun[number])
        self._microbatch, self._open = number, True
        self._begin(_BEFORE_ALL)
        try:
            yield
        finally:
            self._open = False
        self._own.set_generator_states(self._begun[-1])

    def before_block(self, number: int) -> None:
        """From now on, what is drawn is that of this block."""
        self._begin_behind_call(2 * number)

    def behind_block(self, number: int) -> None:
        """From now on, what is drawn is that of what lies behind this block, computed or passed over."""
        self._begin_behind_call(2 * number + 1)

    def _begin_behind_call(self, place: int) -> None:
        if not self._open:  # stages are compared with the whole, which has no streams
            return
        if len(self._begun) == self._microbatch + 1:
            self._begun.append(self._own.generator_states())
        self._own.reseed_generators(self._begin(place))

    def _begin(self, place: int) -> int:
        number = derived(self._seed, self._microbatch, place)
        reseed(number)
        if self._device.type == "cuda":
            torch.cuda.default_generators[self._device.index or 0].manual_seed(number)
        return number
