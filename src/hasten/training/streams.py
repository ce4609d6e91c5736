"""What is drawn at random while the stages of a pipeline compute one microbatch.

Each stage calls the whole loss, and computes its own blocks alone. What is drawn around them, noise that is added to a
sample or a mask over its words, has to be the same on every stage: a later one computes the target of what an earlier
one has seen. So each microbatch has a stream of its own, made of a number that all stages draw alike once in a step;
and each block has one too, so that who computes it moves no other's.

A generator that the job holds itself goes on from the same state for each stage of a microbatch.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from hasten.data.randomness import derived, reseed, undisturbed

_AROUND = -1


class Streams:
    """own, go_on: the states of generators of the job's own, and how they are set."""

    def __init__(
        self, device: torch.device, own: Callable[[], Mapping[str, Any]], go_on: Callable[[Mapping[str, Any]], None]
    ) -> None:
        self._device, self._own, self._go_on = device, own, go_on
        self._seed, self._microbatch = 0, 0
        self._begun = list[Mapping[str, Any]]()  # the states of the job's own, as each microbatch began
        self._open = False

    def begin(self) -> None:
        """A step, or a batch of an evaluation, begins: draws one number, which all stages call alike."""
        self._seed, self._begun = int(torch.randint(2**62, (), dtype=torch.int64)), [self._own()]

    @contextmanager
    def of_microbatch(self, number: int) -> Iterator[None]:
        """Inside, what is drawn is that of this microbatch; afterwards, the global generators are where they were."""
        self._go_on(self._begun[number])
        with undisturbed(self._device):
            self._microbatch, self._open = number, True
            self._start(_AROUND)
            try:
                yield
            finally:
                self._open = False
        if number + 1 == len(self._begun):
            self._begun.append(self._own())
        self._go_on(self._begun[-1])

    @contextmanager
    def of_block(self, number: int) -> Iterator[None]:
        """Inside, what is drawn is that of this block; afterwards, that of what lies around it."""
        if not self._open:  # stages are compared with the whole, which has no streams
            yield
            return
        with undisturbed(self._device):
            self._start(number)
            yield

    def _start(self, place: int) -> None:
        number = derived(self._seed, self._microbatch, place)
        reseed(number)
        if self._device.type == "cuda":
            torch.cuda.default_generators[self._device.index or 0].manual_seed(number)
