"""How a global batch is divided: over the ranks first, then into microbatches.

Which samples make up a global batch never depends on either. Every rank gets the same number of pieces: a rank that ran
fewer forward passes would leave the others waiting in a collective. Where there are too few samples, a piece is empty.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple


class Microbatch(NamedTuple):
    """What one forward and backward pass is given.

    samples: how many of its samples count. 0 for a rank without a share of the global batch: it gets one sample of the
        batch, so that it takes part in every collective, and its loss weighs nothing.
    last: it is the final one of its optimizer step (of the evaluation's data, in an evaluation).
    """

    batch: Any
    samples: int
    last: bool


@dataclass(frozen=True, slots=True)
class Piece:
    """So many samples from position `start` of a global batch on; `last` marks the final piece of an optimizer step."""

    start: int
    samples: int
    last: bool

    @property
    def stop(self) -> int:
        return self.start + self.samples


def share(size: int, part: int, parts: int) -> tuple[int, int]:
    """Start and stop of one of `parts` contiguous shares of `size` positions; their sizes differ by one at most."""
    return size * part // parts, size * (part + 1) // parts


def equal_pieces(size: int, parts: int, rank: int = 0, world_size: int = 1) -> tuple[Piece, ...]:
    """One rank's microbatches of a global batch, all of one size: the fewest that are at least as many as asked for,
    single samples where there are too few, or where ranks have unlike shares. Then one of the shorter shares begins
    with an empty piece."""
    start, stop = share(size, rank, world_size)
    samples, largest = stop - start, max(-(-size // world_size), 1)
    alike = size % world_size == 0
    number = next((each for each in range(parts, largest) if alike and samples % each == 0), largest)
    if samples < number:
        singles = (Piece(start + part, 1, part == samples - 1) for part in range(samples))
        return (Piece(start, 0, samples == 0), *singles)
    each = samples // number
    return tuple(Piece(start + part * each, each, part == number - 1) for part in range(number))


def pieces(size: int, microbatch_size: int | None, rank: int = 0, world_size: int = 1) -> tuple[Piece, ...]:
    """One rank's microbatches of a global batch of `size` samples, in order; at most `microbatch_size` samples each."""
    largest_share = -(-size // world_size)
    parts = 1 if microbatch_size is None else -(-largest_share // microbatch_size)
    start, stop = share(size, rank, world_size)
    # Empty shares come first, so the last piece, where ranks add up gradients, is real if any is.
    shares = [share(stop - start, part, parts) for part in range(parts)]
    return tuple(Piece(start + low, high - low, part == parts - 1) for part, (low, high) in enumerate(shares))
